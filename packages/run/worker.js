// One network in a worker: {id, call, given} comes in, {id, made} or {id, problem} goes out.
import { runtime } from "./index.js";

const ready = runtime();
let network = null;

const calls = {
  async open({ bytes, maxBytes }) {
    network?.close();
    network = (await ready).open(bytes, { maxBytes });
    const { precision, batch, fileBytes, mean, std, inputs, outputs, labels } = network;
    return { precision, batch, fileBytes, mean, std, inputs, outputs, labels };
  },
  // `repeats` runs, of which the times come back, too.
  async run({ inputs, batch, repeats = 1 }) {
    if (!network) throw new Error("no network is open");
    const milliseconds = [];
    let outputs;
    for (let i = 0; i < repeats; ++i) {
      const start = performance.now();
      outputs = network.run(inputs, batch);
      milliseconds.push(performance.now() - start);
    }
    return { outputs, milliseconds };
  },
};

self.onmessage = async ({ data: { id, call, given } }) => {
  try {
    self.postMessage({ id, made: await calls[call](given) });
  } catch (problem) {
    self.postMessage({ id, problem: problem.message, code: problem.code });
  }
};
