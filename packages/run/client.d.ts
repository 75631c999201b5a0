import type { Facts } from "./index.js";

export class WorkerNetwork {
  open(bytes: ArrayBuffer | Uint8Array, options?: { maxBytes?: number }): Promise<Facts>;
  run(
    inputs: readonly (Float32Array | BigInt64Array)[],
    options?: { batch?: number; repeats?: number },
  ): Promise<{ outputs: Float32Array[]; milliseconds: number[] }>;
  close(): void;
}
