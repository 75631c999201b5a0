// Images as numbers, and numbers as words.

/** Pixels [y][x][rgba] → floats [channel][y][x], as the network was trained to see them. */
export function floatsOf(pixels, channels, mean, std) {
  const plane = pixels.length / 4, numbers = new Float32Array(channels * plane);
  for (let c = 0; c < channels; ++c) {
    const at = mean.length === 1 ? 0 : c;
    for (let i = 0; i < plane; ++i) {
      const [r, g, b] = pixels.subarray(4 * i, 4 * i + 3);
      const byte = channels === 1 ? 0.299 * r + 0.587 * g + 0.114 * b : pixels[4 * i + c];
      numbers[c * plane + i] = (Math.fround(byte / 255) - (mean[at] ?? 0)) / (std[at] ?? 1);
    }
  }
  return numbers;
}

/** The largest outputs as words, each with its share of a softmax. */
export function largest(numbers, labels, count = 5) {
  const order = Array.from(numbers.keys()).sort((a, b) => numbers[b] - numbers[a] || a - b);
  const powers = numbers.map((n) => Math.exp(n - numbers[order[0]])), all = powers.reduce((a, b) => a + b, 0);
  return order.slice(0, count).map((i) => ({
    text: `${labels[i] ?? i}: ${numbers[i].toPrecision(6)}`,
    share: powers[i] / all,
  }));
}

export function median(numbers) {
  return [...numbers].sort((a, b) => a - b)[numbers.length >> 1];
}

export function sizeOf(bytes) {
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
}
