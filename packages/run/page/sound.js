// Sounds as samples at 8 kHz, from files and from the microphone, and samples as sounds.
export const RATE = 8000;
const MOST_SECONDS = 60, USUAL_RATE = 48000, PCM = 1;

/** The chunks of a WAV file by their names, as views of its bytes; of other files null. */
function chunksOf(bytes) {
  const view = new DataView(bytes), text = (at) => String.fromCharCode(...new Uint8Array(bytes, at, 4)), chunks = {};
  if (bytes.byteLength < 12 || text(0) !== "RIFF" || text(8) !== "WAVE") return null;
  for (let at = 12; at + 8 <= bytes.byteLength;) {
    const size = Math.min(view.getUint32(at + 4, true), bytes.byteLength - at - 8);
    chunks[text(at)] = new DataView(bytes, at + 8, size);
    at += 8 + size + (size & 1);
  }
  return chunks["fmt "]?.byteLength >= 16 && chunks.data ? chunks : null;
}

/** The channels and the rate of a sound file. */
async function decoded(bytes) {
  const chunks = chunksOf(bytes), format = chunks?.["fmt "], rate = format?.getUint32(4, true) ?? USUAL_RATE;
  // Browsers do not agree on what 32767 stands for (Chromium: 1); as everywhere in Tersify it is 1 − 2⁻¹⁵.
  if (format?.getUint16(0, true) === PCM && format.getUint16(14, true) === 16) {
    const count = format.getUint16(2, true), length = Math.floor(chunks.data.byteLength / (2 * count));
    const sample = (c) => (_, i) => chunks.data.getInt16(2 * (i * count + c), true) / 32768;
    return { rate, channels: Array.from({ length: count }, (_, c) => Float32Array.from({ length }, sample(c))) };
  }
  // A context of the rate of the file leaves that as it is.
  const sound = await new OfflineAudioContext(1, 1, rate).decodeAudioData(bytes);
  const channels = Array.from({ length: sound.numberOfChannels }, (_, c) => sound.getChannelData(c));
  return { rate: sound.sampleRate, channels };
}

/** A sound file → one row of samples at 8 kHz: channels are averaged, other rates resampled. */
export async function samplesOf(name, bytes) {
  const { channels, rate } = await decoded(bytes).catch(() => ({}));
  if (!(rate > 0) || !channels.length || !channels[0].length) throw new Error(`${name} is no sound that this browser reads`);
  const mono = channels[0].map((_, i) => channels.reduce((sum, channel) => sum + channel[i], 0) / channels.length);
  return resampled(mono, rate);
}

const divisor = (a, b) => (b ? divisor(b, a % b) : a);

function bessel(x) {
  let sum = 1;
  for (let k = 1, term = 1; term > 1e-17 * sum; ++k) sum += term *= (x / (2 * k)) ** 2;
  return sum;
}

/** To 8 kHz by a windowed sinc (Kaiser, β = 5) of ten zeros either side, as scipy's resample_poly. */
export function resampled(signal, rate) {
  if (rate === RATE) return signal;
  const up = RATE / divisor(RATE, rate), down = rate / divisor(RATE, rate), most = Math.max(up, down), half = 10 * most;
  const taps = Float64Array.from({ length: 2 * half + 1 }, (_, i) => {
    const x = (i - half) / most, kaiser = bessel(5 * Math.sqrt(1 - ((i - half) / half) ** 2));
    return kaiser * (x ? Math.sin(Math.PI * x) / (Math.PI * x) : 1);
  });
  const scale = up / taps.reduce((a, b) => a + b);
  return Float32Array.from({ length: Math.ceil((signal.length * up) / down) }, (_, m) => {
    let sum = 0;
    const first = Math.max(0, Math.ceil((m * down - half) / up));
    const last = Math.min(signal.length - 1, Math.floor((m * down + half) / up));
    for (let i = first; i <= last; ++i) sum += signal[i] * taps[m * down - i * up + half];
    return sum * scale;
  });
}

const whole = (sample) => Math.max(-32768, Math.min(32767, Math.floor(sample * 32768)));

/** Records until `stop()`, or for a minute; `samples` are what a file of 16 bits would hold. */
export async function record() {
  if (!navigator.mediaDevices) throw new Error("only pages from https or from this machine may use the microphone");
  const audio = { echoCancellation: false, noiseSuppression: false, autoGainControl: false };
  const stream = await navigator.mediaDevices.getUserMedia({ audio }).catch(({ message }) => {
    throw new Error(`there is no microphone to record from: ${message}`);
  });
  const context = new AudioContext(), pieces = [];
  await context.audioWorklet.addModule(new URL("./recorder.js", import.meta.url));
  const recorder = new AudioWorkletNode(context, "recorder", { numberOfOutputs: 0 });
  let stop;
  const stopped = new Promise((resolve) => (stop = resolve));
  setTimeout(stop, MOST_SECONDS * 1000);
  recorder.port.onmessage = ({ data }) => pieces.push(data);
  context.createMediaStreamSource(stream).connect(recorder);
  const samples = stopped.then(async () => {
    for (const track of stream.getTracks()) track.stop();
    await context.close();
    if (!pieces.length) throw new Error("the microphone gave no sound");
    const all = Float32Array.from(pieces.flatMap((piece) => Array.from(piece)));
    return resampled(all, context.sampleRate).map((sample) => whole(sample) / 32768);
  });
  return { stop, samples };
}

/** A WAV file of 16 bits. */
export function wavOf(samples) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (at, word) => [...word].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples.length, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, PCM, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, RATE, true);
  view.setUint32(28, 2 * RATE, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, i) => view.setInt16(44 + 2 * i, whole(sample), true));
  return new Blob([view.buffer], { type: "audio/wav" });
}

/** The outline of a sound over the width of a canvas. */
export function draw(canvas, samples) {
  const pen = canvas.getContext("2d"), { width, height } = canvas;
  pen.clearRect(0, 0, width, height);
  pen.fillStyle = getComputedStyle(canvas).color;
  for (let x = 0; x < width; ++x) {
    const part = samples.subarray(Math.floor((x * samples.length) / width), Math.ceil(((x + 1) * samples.length) / width));
    const peak = Math.min(1, part.reduce((most, sample) => Math.max(most, Math.abs(sample)), 0));
    pen.fillRect(x, (height * (1 - peak)) / 2, 1, Math.max(1, height * peak));
  }
}
