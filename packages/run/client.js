// A network in a worker of its own, so that a page stays quick.
import { TersifyError } from "./index.js";

export class WorkerNetwork {
  #worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  #waiting = new Map();
  #last = 0;

  constructor() {
    this.#worker.onmessage = ({ data: { id, made, problem, code } }) => {
      const { resolve, reject } = this.#waiting.get(id);
      this.#waiting.delete(id);
      if (problem === undefined) resolve(made);
      else reject(new TersifyError(code ?? 8, problem));
    };
    this.#worker.onerror = ({ message }) => {
      for (const { reject } of this.#waiting.values()) reject(new TersifyError(8, message || "the worker did not start"));
      this.#waiting.clear();
    };
  }

  #ask(call, given) {
    const id = ++this.#last;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#worker.postMessage({ id, call, given });
    });
  }

  open(bytes, { maxBytes = 0 } = {}) {
    return this.#ask("open", { bytes, maxBytes });
  }

  run(inputs, { batch, repeats = 1 } = {}) {
    return this.#ask("run", { inputs, batch, repeats });
  }

  close() {
    this.#worker.terminate();
  }
}
