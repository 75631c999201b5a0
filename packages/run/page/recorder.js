// In the thread of the sounds: what the microphone gives goes to the page, piece by piece.
class Recorder extends AudioWorkletProcessor {
  process([input]) {
    if (input.length) this.port.postMessage(input[0].slice());
    return true;
  }
}
registerProcessor("recorder", Recorder);
