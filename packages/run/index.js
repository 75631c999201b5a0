// libtersify in WebAssembly. The structs below are those of tersify.h with pointers of 32 bits.

export class TersifyError extends Error {
  constructor(code, sentence) {
    super(sentence);
    this.name = "TersifyError";
    this.code = code;
  }
}

const FACTS_BYTES = 48, PORT_BYTES = 16, TENSOR_BYTES = 8, POINTER_BYTES = 4;
const MEMORY_BYTES = 2 ** 31; // of the module; addresses beyond would wrap around

// Not by bits: those of JavaScript are 32, and sizes may have more.
const padded = (bytes) => Math.ceil(bytes / 64) * 64;

async function bytesOf(source) {
  if (ArrayBuffer.isView(source) || source instanceof ArrayBuffer) return source;
  if (String(source).startsWith("file:")) {
    // Node fetches no files. What packs programs for browsers must leave this call alone.
    const { readFile } = await import(/* webpackIgnore: true */ /* @vite-ignore */ "node:fs/promises");
    return readFile(new URL(source));
  }
  const response = await fetch(source);
  if (!response.ok) throw new Error(`${source} is answered with ${response.status}`);
  return response.arrayBuffer();
}

async function compiled(source) {
  if (source instanceof WebAssembly.Module) return source;
  try {
    return await WebAssembly.compile(await bytesOf(source));
  } catch (problem) {
    throw new TersifyError(1, `the module cannot be read: ${problem.message}`);
  }
}

/** The runtime; `source` is a module, its bytes or its address, and by default tersify.wasm beside this file. */
export async function runtime(source) {
  const module = await compiled(source ?? new URL("./tersify.wasm", import.meta.url));
  let memory;
  const imports = {
    env: { emscripten_notify_memory_growth() {} },
    wasi_snapshot_preview1: {
      clock_time_get(_clock, _precision, at) {
        new DataView(memory.buffer).setBigUint64(at, BigInt(Math.round(performance.now() * 1e6)), true);
        return 0;
      },
      proc_exit(code) {
        throw new TersifyError(8, `the module ended itself with ${code}`);
      },
    },
  };
  const { exports } = await WebAssembly.instantiate(module, imports);
  memory = exports.memory;
  exports._initialize();
  return new Runtime(exports);
}

class Runtime {
  #c;
  constructor(exports) {
    this.#c = exports;
  }

  get version() {
    return this.#text(this.#c.tersify_version());
  }

  /** The network of a .terse file. `maxBytes` limits what decoding may take; 0 stands for 2 GiB. */
  open(bytes, { maxBytes = 0 } = {}) {
    const data = bytes instanceof ArrayBuffer ? new Uint8Array(bytes) : bytes;
    if (!(data instanceof Uint8Array)) throw new TersifyError(4, "open takes an ArrayBuffer or a Uint8Array");
    if (!Number.isSafeInteger(maxBytes) || maxBytes < 0)
      throw new TersifyError(4, `maxBytes must be a whole number, 0 or more, got ${maxBytes}`);
    return this.#with(data.length, (at) => {
      new Uint8Array(this.#c.memory.buffer, at, data.length).set(data);
      const model = this.#made((place) => this.#c.tersify_open_memory(at, data.length, BigInt(maxBytes), place));
      try {
        const session = this.#made((place) => this.#c.tersify_session_new(model, 0, place));
        return new Network(this.#access(), model, session);
      } catch (problem) {
        this.#c.tersify_close(model);
        throw problem;
      }
    });
  }

  #access() {
    return {
      c: this.#c,
      text: (at) => this.#text(at),
      check: (status) => this.#check(status),
      using: (bytes, use) => this.#with(bytes, use),
    };
  }

  #text(at) {
    const bytes = new Uint8Array(this.#c.memory.buffer);
    return new TextDecoder().decode(bytes.slice(at, bytes.indexOf(0, at)));
  }

  #check(status) {
    if (status !== 0) throw new TersifyError(status, this.#text(this.#c.tersify_last_error()));
  }

  #with(bytes, use) {
    const at = bytes < MEMORY_BYTES ? this.#c.malloc(Math.max(bytes, 8)) : 0;
    if (at === 0) throw new TersifyError(7, `there is no memory for ${bytes} bytes`);
    try {
      return use(at);
    } finally {
      this.#c.free(at);
    }
  }

  #made(make) {
    return this.#with(POINTER_BYTES, (place) => {
      this.#check(make(place));
      return new DataView(this.#c.memory.buffer).getUint32(place, true);
    });
  }
}

class Network {
  #r;
  #model;
  #session;

  constructor(access, model, session) {
    this.#r = access;
    this.#model = model;
    this.#session = session;
    access.using(FACTS_BYTES, (at) => {
      access.check(access.c.tersify_describe(model, at));
      const view = new DataView(access.c.memory.buffer, at);
      const word = (place) => view.getUint32(place, true);
      const floats = (place) => Array.from(new Float32Array(access.c.memory.buffer, word(place), word(28)));
      this.precision = access.text(word(0));
      this.batch = Number(view.getBigInt64(8, true));
      this.fileBytes = Number(view.getBigUint64(40, true));
      this.mean = word(28) ? floats(32) : [];
      this.std = word(28) ? floats(36) : [];
      this.inputs = this.#ports(word(16), access.c.tersify_input);
      this.outputs = this.#ports(word(20), access.c.tersify_output);
      this.labels = Array.from({ length: word(24) }, (_, i) => access.text(access.c.tersify_label(model, i)));
    });
  }

  #ports(count, ask) {
    const { c, check, text, using } = this.#r;
    return Array.from({ length: count }, (_, number) =>
      using(PORT_BYTES, (at) => {
        check(ask(this.#model, number, at));
        const view = new DataView(c.memory.buffer, at);
        const shape = new BigInt64Array(c.memory.buffer, view.getUint32(12, true), view.getUint32(8, true));
        return {
          name: text(view.getUint32(0, true)),
          dtype: view.getUint32(4, true) ? "int64" : "float32",
          shape: Array.from(shape, Number),
        };
      }),
    );
  }

  /** Arrays in the order of the inputs → arrays in the order of the outputs. */
  run(inputs, batch = this.batch || 1) {
    if (!this.#session) throw new TersifyError(4, "the network is closed");
    if (inputs?.length !== this.inputs.length)
      throw new TersifyError(4, `run takes an array of inputs, ${this.inputs.length} of them, got ${inputs?.length ?? inputs}`);
    if (!Number.isSafeInteger(batch) || batch < 1)
      throw new TersifyError(4, `the batch must be a whole number, 1 or more, got ${batch}`);
    this.inputs.forEach((port, i) => {
      const wanted = port.dtype === "int64" ? BigInt64Array : Float32Array;
      if (!(inputs[i] instanceof wanted)) throw new TersifyError(4, `'${port.name}' takes a ${wanted.name}`);
    });
    const { c, check, using } = this.#r;
    const counts = this.outputs.map(({ shape }, i) =>
      this.#sizes(shape, i, inputs, batch).reduce((all, size) => all * size, 1),
    );
    const bytes = [...inputs.map((array) => array.byteLength), ...counts.map((count) => count * 4)];
    const ports = bytes.length, places = [];
    let end = padded(ports * TENSOR_BYTES);
    for (const size of bytes) {
      places.push(end);
      end += padded(size);
    }
    return using(end, (at) => {
      const view = new DataView(c.memory.buffer, at);
      [...inputs.map((array) => array.length), ...counts].forEach((count, i) => {
        view.setUint32(i * TENSOR_BYTES, at + places[i], true);
        view.setUint32(i * TENSOR_BYTES + 4, count, true);
      });
      inputs.forEach((array, i) => {
        const from = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
        new Uint8Array(c.memory.buffer, at + places[i], array.byteLength).set(from);
      });
      check(c.tersify_run(this.#session, BigInt(batch), at, at + inputs.length * TENSOR_BYTES));
      return counts.map((count, i) =>
        new Float32Array(c.memory.buffer.slice(at + places[inputs.length + i], at + places[inputs.length + i] + 4 * count)),
      );
    });
  }

  /** Of an output; where it changes with the length (−2), that is what the inputs have. */
  #sizes(shape, number, inputs, batch) {
    if (!shape.includes(-2)) return shape.map((size) => (size < 0 ? batch : size));
    const { c, check, using } = this.#r;
    const i = this.inputs.findIndex((port) => port.shape.includes(-2));
    const others = this.inputs[i].shape.reduce((all, size) => all * (size === -1 ? batch : size === -2 ? 1 : size), 1);
    const length = BigInt(Math.floor(inputs[i].length / others));
    return using(8 * shape.length, (at) => {
      check(c.tersify_sizes(this.#model, 1, number, BigInt(batch), length, at));
      return Array.from(new BigInt64Array(c.memory.buffer, at, shape.length), Number);
    });
  }

  close() {
    if (!this.#session) return;
    this.#r.c.tersify_session_free(this.#session);
    this.#r.c.tersify_close(this.#model);
    this.#session = this.#model = 0;
  }
}
