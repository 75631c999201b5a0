export class TersifyError extends Error {
  /** A tersify_status of the C library. */
  readonly code: number;
}

export interface Port {
  readonly name: string;
  readonly dtype: "float32" | "int64";
  /** A size of −1 is the batch, one of −2 changes with the length, which is that of the inputs. */
  readonly shape: readonly number[];
}

/** What a file says of its network. */
export interface Facts {
  readonly precision: "fp32" | "int8";
  /** The only batch that it runs, or 0 for any. */
  readonly batch: number;
  readonly fileBytes: number;
  /** Of images: (byte / 255 − mean) / std goes in, channel by channel. */
  readonly mean: readonly number[];
  readonly std: readonly number[];
  readonly inputs: readonly Port[];
  readonly outputs: readonly Port[];
  readonly labels: readonly string[];
}

export interface Network extends Facts {
  run(inputs: readonly (Float32Array | BigInt64Array)[], batch?: number): Float32Array[];
  close(): void;
}

export interface Runtime {
  readonly version: string;
  open(bytes: ArrayBuffer | Uint8Array, options?: { maxBytes?: number }): Network;
}

export function runtime(source?: WebAssembly.Module | ArrayBuffer | Uint8Array | URL | string): Promise<Runtime>;
