// Speech through the network, as `tersify enhance` does it: magnitudes from the network, phases from the mixture.
const BINS = 129, FRAMES = 8, POINTS = 2 * (BINS - 1), TINY = 1e-12;

/** Whether a file holds the speech network: eight frames of magnitudes in, one out. */
export function isSpeech({ inputs, outputs }) {
  const is = ({ shape }, ...sizes) => shape.length === sizes.length + 1 && sizes.every((n, i) => n === shape[i + 1]);
  return inputs.length === 1 && outputs.length === 1 && is(inputs[0], FRAMES, BINS) && is(outputs[0], BINS);
}

/** The Fourier transform of `POINTS` complex numbers in place; `sign` 1 is the inverse without its 1 / POINTS. */
function transform(re, im, sign) {
  for (let i = 1, j = 0; i < POINTS; ++i) {
    let bit = POINTS >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) [re[i], re[j], im[i], im[j]] = [re[j], re[i], im[j], im[i]];
  }
  for (let size = 2; size <= POINTS; size *= 2) {
    for (let k = 0; k < size / 2; ++k) {
      const c = Math.cos((2 * Math.PI * k) / size), s = sign * Math.sin((2 * Math.PI * k) / size);
      for (let a = k; a < POINTS; a += size) {
        const b = a + size / 2, x = re[b] * c - im[b] * s, y = re[b] * s + im[b] * c;
        [re[b], im[b], re[a], im[a]] = [re[a] - x, im[a] - y, re[a] + x, im[a] + y];
      }
    }
  }
}

/** The spectrum of a frame of a signal, with half a window of silence before and after it. */
function spectrum(signal, start, window) {
  const re = new Float64Array(POINTS), im = new Float64Array(POINTS);
  for (let i = 0; i < window; ++i)
    re[i] = (signal[start + i] ?? 0) * (0.5 - 0.5 * Math.cos((2 * Math.PI * i) / window));
  transform(re, im, -1);
  return { re, im };
}

/** Samples at 8 kHz → enhanced samples, and how long the network took for each frame. */
export async function enhance(network, noisy, window) {
  const hop = window / 2, frames = Math.ceil(noisy.length / hop) + 1;
  const enhanced = new Float64Array(noisy.length), milliseconds = [];
  const stack = new Float32Array(FRAMES * BINS);
  for (let frame = 0; frame < frames; ++frame) {
    const start = (frame - 1) * hop, { re, im } = spectrum(noisy, start, window);
    const magnitudes = Float32Array.from({ length: BINS }, (_, k) => Math.hypot(re[k], im[k]));
    stack.copyWithin(0, BINS);
    // The first frame stands for the seven that are missing before it.
    for (let at = frame ? FRAMES - 1 : 0; at < FRAMES; ++at) stack.set(magnitudes, at * BINS);
    const made = await network.run([stack], { batch: 1 });
    milliseconds.push(made.milliseconds[0]);
    for (let k = 0; k < BINS; ++k) {
      const gain = made.outputs[0][k] / Math.max(magnitudes[k], TINY);
      re[k] *= gain;
      im[k] *= gain;
    }
    for (let k = 1; k < BINS - 1; ++k) [re[POINTS - k], im[POINTS - k]] = [re[k], -im[k]];
    transform(re, im, 1);
    for (let i = Math.max(0, -start); i < POINTS && start + i < noisy.length; ++i) enhanced[start + i] += re[i] / POINTS;
  }
  return { enhanced: Float32Array.from(enhanced), milliseconds, stack };
}
