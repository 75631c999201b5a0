// ONNX Runtime Web beside us, where `npm install` has put it: one thread, the same numbers.
const PLACE = new URL("../node_modules/onnxruntime-web/dist/", import.meta.url);

async function onnxRuntime() {
  try {
    return await import(new URL("ort.wasm.min.mjs", PLACE));
  } catch {
    throw new Error("ONNX Runtime Web is not here: run npm install in the folder of @tersify/run");
  }
}

export async function onnxNetwork(bytes) {
  const ort = await onnxRuntime();
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmPaths = PLACE.href;
  const session = await ort.InferenceSession.create(new Uint8Array(bytes), { executionProviders: ["wasm"] });
  return {
    async run(numbers, shape, repeats) {
      const milliseconds = [];
      let made;
      for (let i = 0; i < repeats; ++i) {
        const given = { [session.inputNames[0]]: new ort.Tensor("float32", numbers, shape) };
        const start = performance.now();
        made = await session.run(given);
        milliseconds.push(performance.now() - start);
      }
      return { outputs: [made[session.outputNames[0]].data], milliseconds };
    },
  };
}
