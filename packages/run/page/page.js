// Files come from a drop, from the button, or from the address: ?terse=URL&image=URL&sound=URL&onnx=URL.
import { WorkerNetwork } from "../client.js";
import { onnxNetwork } from "./onnx.js";
import { RATE, draw, record, samplesOf, wavOf } from "./sound.js";
import { enhance, isSpeech } from "./speech.js";
import { floatsOf, largest, median, sizeOf } from "./numbers.js";

const REPEATS = 30, WARM_UP = 3;
const at = (id) => document.getElementById(id);
const network = new WorkerNetwork();
const held = { facts: null, terseBytes: 0, image: null, sound: null, onnx: null };

function tell(problem) {
  at("problem").textContent = problem?.message ?? "";
  at("status").textContent = "";
}

async function openTerse(name, bytes) {
  held.facts = null;
  for (const id of ["network", "result", "speech", "sounds", "times"]) at(id).hidden = true;
  held.facts = await network.open(bytes);
  held.terseBytes = bytes.byteLength;
  at("name").textContent = name;
  const { precision, inputs, outputs, mean } = held.facts;
  const sizes = (ports) => ports.map(({ shape }) => shape.map((n) => (n < 0 ? "batch" : n)).join("×")).join(", ");
  const facts = { size: sizeOf(bytes.byteLength), activations: precision, takes: sizes(inputs), makes: sizes(outputs) };
  if (inputs[0].shape.length === 4 && !mean.length) facts.images = "bytes divided by 255, since the plan does not say";
  at("facts").replaceChildren(...Object.entries(facts).flatMap(([term, text]) => {
    const [dt, dd] = [document.createElement("dt"), document.createElement("dd")];
    dt.textContent = term;
    dd.textContent = text;
    return [dt, dd];
  }));
  at("network").hidden = false;
  at("speech").hidden = !isSpeech(held.facts);
}

function pixelsOf(image, height, width) {
  const canvas = at("image");
  [canvas.width, canvas.height] = [width, height];
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.drawImage(image, 0, 0, width, height);
  return pen.getImageData(0, 0, width, height).data;
}

function timed(name, bytes, milliseconds) {
  const row = document.createElement("tr");
  for (const text of [name, sizeOf(bytes), median(milliseconds).toFixed(2)]) {
    const cell = document.createElement("td");
    cell.textContent = text;
    row.append(cell);
  }
  at("rows").append(row);
}

async function run() {
  const speech = held.facts && isSpeech(held.facts), given = speech ? held.sound : held.image;
  if (held.facts && !given && (held.sound || held.image))
    throw new Error(speech ? "the network takes speech: record it, or drop a sound" : "the network takes no sound");
  if (!given || !held.facts) {
    const wanted = speech ? "Now record speech, or drop a sound." : "Now an image.";
    at("status").textContent = held.facts ? wanted : "Now a .terse file.";
    return;
  }
  at("status").textContent = "Running…";
  const made = await (speech ? runSpeech() : runImage());
  if (held.onnx) await runBeside(...made);
  at("status").textContent = "";
  document.body.dataset.done = "yes";
}

async function runImage() {
  const { inputs, mean, std, labels } = held.facts;
  const [, channels, height, width] = inputs[0].shape;
  if (inputs.length !== 1 || inputs[0].shape.length !== 4) throw new Error("the network does not take one image");
  if (mean.length > 1 && mean.length !== channels)
    throw new Error(`the plan has the mean of ${mean.length} channels for images, and the network takes ${channels}`);
  const numbers = floatsOf(pixelsOf(held.image, height, width), channels, mean, std);
  const ours = await network.run([numbers], { batch: 1, repeats: WARM_UP + REPEATS });
  at("largest").replaceChildren(...largest(ours.outputs[0], labels).map(({ text, share }) => {
    const item = document.createElement("li");
    item.textContent = text;
    item.style.setProperty("--share", share);
    return item;
  }));
  at("result").hidden = false;
  showTimes("image", ours);
  return [numbers, [1, channels, height, width], ours];
}

async function runSpeech() {
  const window = Number(at("window").value);
  const { enhanced, milliseconds, stack } = await enhance(network, held.sound, window);
  at("sounds").hidden = false;
  for (const [name, samples] of Object.entries({ noisy: held.sound, enhanced })) {
    URL.revokeObjectURL(at(name).src);
    at(name).src = URL.createObjectURL(wavOf(samples));
    draw(at(`${name}-outline`), samples);
  }
  const ours = await network.run([stack], { batch: 1, repeats: WARM_UP + REPEATS });
  showTimes("frame", ours);
  const seconds = held.sound.length / RATE, spent = milliseconds.reduce((a, b) => a + b);
  at("heard").textContent =
    `${seconds.toFixed(2)} s of sound, ${milliseconds.length} frames, ${spent.toFixed(0)} ms in the network.`;
  return [stack, [1, ...held.facts.inputs[0].shape.slice(1)], ours];
}

function showTimes(each, ours) {
  at("times").hidden = false;
  at("each").textContent = `one thread, one ${each}`;
  at("rows").replaceChildren();
  at("heard").textContent = "";
  timed("Tersify", held.terseBytes, ours.milliseconds.slice(WARM_UP));
  at("beside").textContent = "Drop the same network as .onnx to time ONNX Runtime Web beside it.";
}

// Behind our own run, which needs nothing of it. A file that cannot run is forgotten.
async function runBeside(numbers, shape, ours) {
  const { onnx } = held;
  held.onnx = null;
  onnx.network ??= await onnxNetwork(await onnx.blob.arrayBuffer());
  const theirs = await onnx.network.run(numbers, shape, WARM_UP + REPEATS);
  held.onnx = onnx;
  timed("ONNX Runtime Web", onnx.blob.size, theirs.milliseconds.slice(WARM_UP));
  const ratio = median(theirs.milliseconds.slice(WARM_UP)) / median(ours.milliseconds.slice(WARM_UP));
  const gaps = ours.outputs[0].map((n, i) => Math.abs(n - theirs.outputs[0][i]));
  at("beside").textContent =
    `Tersify takes 1/${ratio.toFixed(1)} of the time; the outputs differ by at most ${Math.max(...gaps).toPrecision(2)}.`;
}

async function take(name, blob) {
  if (name.endsWith(".terse")) {
    await openTerse(name.split("/").pop(), await blob.arrayBuffer());
  } else if (name.endsWith(".onnx")) {
    held.onnx = { blob, network: null };
  } else if (blob.type.startsWith("audio/")) {
    [held.sound, held.image] = [await samplesOf(name, await blob.arrayBuffer()), null];
  } else {
    [held.image, held.sound] = [await createImageBitmap(blob), null];
  }
}

async function takeAll(files) {
  await telling(async () => {
    for (const { name, blob } of files) await take(name, blob);
    await run();
  });
}

async function recordSpeech() {
  const button = at("record");
  if (held.recording) return held.recording.stop();
  await telling(async () => {
    held.recording = await record();
    button.textContent = "Stop";
    at("status").textContent = "Recording…";
    held.sound = await held.recording.samples.finally(() => {
      held.recording = null;
      button.textContent = "Record";
    });
    await run();
  });
}

async function telling(work) {
  tell(null);
  delete document.body.dataset.done;
  try {
    await work();
  } catch (problem) {
    tell(problem);
    document.body.dataset.done = "no";
  }
}

const dropped = (list) => Array.from(list, (file) => ({ name: file.name, blob: file }));
at("record").addEventListener("click", recordSpeech);
at("window").addEventListener("change", () => takeAll([]));
at("files").addEventListener("change", ({ target }) => takeAll(dropped(target.files)));
const over = (is) => at("drop").classList.toggle("over", is);
addEventListener("dragover", (event) => {
  event.preventDefault();
  over(true);
});
addEventListener("dragleave", () => over(false));
addEventListener("drop", (event) => {
  event.preventDefault();
  over(false);
  takeAll(dropped(event.dataTransfer.files));
});

const asked = new URLSearchParams(location.search);
const given = await Promise.all(["terse", "onnx", "image", "sound"].filter((key) => asked.has(key)).map(async (key) => {
  const response = await fetch(asked.get(key));
  return { name: asked.get(key), blob: await response.blob(), ok: response.ok };
}));
const missing = given.find(({ ok }) => !ok);
if (missing) tell(new Error(`${missing.name} cannot be read`));
else if (given.length) await takeAll(given);
