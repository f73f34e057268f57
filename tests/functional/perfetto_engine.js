// Runs Perfetto's own trace processor, as its UI ships it, over one stream of RPC requests.
// Usage: node perfetto_engine.js FOLDER_OF_THE_UI REQUESTS REPLIES
"use strict";
const fs = require("fs");
const path = require("path");

const [folder, requests, replies] = process.argv.slice(2);
const PIECE = 32 << 20;

// The engine is built for a web worker: it is given the few globals of one, and Node's `process` is hidden from it.
const worker = { location: { href: `file://${folder}/engine_bundle.js` } };
class FileRequest {
  open(_method, url) {
    this.path = path.join(folder, path.basename(url));
  }
  send() {
    const bytes = fs.readFileSync(this.path);
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  }
}
const start = new Function(
  "self", "location", "WorkerGlobalScope", "XMLHttpRequest", "process",
  fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"),
);
start(worker, worker.location, class {}, FileRequest, undefined);

const answers = [];
const port = { postMessage: (bytes) => answers.push(Buffer.from(bytes)) };
worker.onmessage({ data: port });

setTimeout(() => {
  const file = fs.openSync(requests, "r");
  const piece = new Uint8Array(PIECE);
  for (let count; (count = fs.readSync(file, piece, 0, PIECE)) > 0; ) {
    port.onmessage({ data: piece.subarray(0, count) });
  }
  fs.writeFileSync(replies, Buffer.concat(answers));
}, 0);
