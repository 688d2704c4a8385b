// The script of the chat page against `motley serve`, and against answers that are made up here so
// that they come in pieces; MOTLEY_URL names the server. The page's elements are stand-ins that
// know what the script uses of them: what a browser paints is not looked at.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import vm from "node:vm";

const served = await fetch(process.env.MOTLEY_URL + "/", { headers: { accept: "text/html" } });
const page = await served.text();
const script = page.match(/<script>([^]*)<\/script>/)[1];
const policy = served.headers.get("content-security-policy");
const digest = createHash("sha256").update(script).digest("base64");
assert.ok(policy.includes(`script-src 'sha256-${digest}'`), "a browser runs the script");

class Element {
  constructor(name) {
    Object.assign(this, { name, className: "", value: "", hidden: false, disabled: false, open: false });
    Object.assign(this, { children: [], parent: null, listeners: {}, focused: 0 });
    Object.assign(this, { scrollHeight: 0, scrollTop: 0, clientHeight: 0 });
    this.classList = {
      add: (kind) => { this.classList.remove(kind); this.className = (this.className + " " + kind).trim(); },
      remove: (kind) => { this.className = this.className.split(" ").filter((one) => one !== kind).join(" "); },
    };
  }
  get textContent() { return this.children.map((child) => child.textContent).join(""); }
  set textContent(text) { this.replaceChildren(new Text(text)); }
  get isConnected() { return this.parent ? this.parent.isConnected : this.name === "main"; }
  get lastElementChild() { return this.children.filter((child) => child instanceof Element).at(-1) ?? null; }
  append(...made) {
    for (const child of made) { child.remove(); child.parent = this; this.children.push(child); }
  }
  before(made) {
    made.remove();
    made.parent = this.parent;
    this.parent.children.splice(this.parent.children.indexOf(this), 0, made);
  }
  replaceChildren(...made) {
    [...this.children].forEach((child) => child.remove());
    this.append(...made);
    // A list of models shows its first one.
    if (this.name === "select") this.value = made[0]?.value ?? "";
  }
  remove() {
    if (this.parent) this.parent.children.splice(this.parent.children.indexOf(this), 1);
    this.parent = null;
  }
  querySelectorAll(wanted) {
    const [name, kind] = wanted.split(".");
    const below = this.children.filter((child) => child instanceof Element);
    const fits = (one) => one.name === name && (!kind || one.className.split(" ").includes(kind));
    return below.flatMap((child) => [...(fits(child) ? [child] : []), ...child.querySelectorAll(wanted)]);
  }
  addEventListener(kind, listener) { (this.listeners[kind] ??= []).push(listener); }
  happens(kind, event = {}) {
    for (const listener of this.listeners[kind] ?? []) listener({ preventDefault() {}, ...event });
  }
  focus() { this.focused += 1; }
}

class Text {
  constructor(text) { Object.assign(this, { textContent: String(text), parent: null }); }
  remove() { Element.prototype.remove.call(this); }
}

// A fresh page whose requests go to `fetch`.
function open(fetch) {
  const parts = {};
  for (const [, name, id] of page.matchAll(/<(\w+)[^>]* id="(\w+)"/g)) {
    parts[id] = new Element(name);
  }
  parts.log.append(parts.hint);
  const document = new Element("document");
  document.getElementById = (id) => parts[id];
  document.createElement = (name) => new Element(name);
  document.createTextNode = (text) => new Text(text);
  const kept = {};
  const sessionStorage = { getItem: (name) => kept[name] ?? null, setItem: (name, value) => { kept[name] = value; } };
  const known = { document, sessionStorage, fetch, navigator: {}, performance, AbortController, TextDecoder };
  vm.runInNewContext(script, known);
  const answers = () => parts.log.querySelectorAll("article.assistant");
  const ask = (text) => { parts.prompt.value = text; parts.form.happens("submit"); };
  return { ...parts, document, answers, ask };
}

// Until `holds`: what the script does goes on between the turns of the event loop.
async function until(holds) {
  while (!holds()) await new Promise((done) => setImmediate(done));
}

const done = (opened) => until(() => opened.send.disabled === false);

// A server whose answers come in the pieces that the test says.
function madeUp() {
  const server = { bodies: [], keys: [], send: null, refusal: null };
  server.fetch = async (url, request = {}) => {
    server.keys.push(request.headers?.authorization);
    const json = (body, status = 200) => new Response(JSON.stringify(body), { status });
    if (server.refusal) return json({ error: { message: server.refusal } }, 401);
    if (url === "v1/models") return json({ data: [{ id: "one" }, { id: "two" }] });
    server.bodies.push(JSON.parse(request.body));
    const stream = new ReadableStream({
      start(controller) {
        const bytes = (text) => controller.enqueue(new TextEncoder().encode(text));
        server.bytes = (some) => controller.enqueue(some);
        server.send = (event) => bytes("data: " + (event === "[DONE]" ? event : JSON.stringify(event)) + "\n\n");
        server.comment = () => bytes(": wait\n\n");
        server.close = () => controller.close();
        request.signal.addEventListener("abort", () => controller.error(request.signal.reason));
      },
    });
    return new Response(stream);
  };
  server.says = (content) => server.send({ choices: [{ delta: { content } }] });
  server.asked = (count) => until(() => server.bodies.length === count && server.send);
  return server;
}

async function anAnswerComesInPieces() {
  const server = madeUp();
  const opened = open(server.fetch);
  await until(() => opened.model.value === "one");
  opened.system.value = "Be brief.";
  opened.tokens.value = "7";
  opened.ask("  Hello?  ");
  await server.asked(1);
  assert.ok(opened.send.disabled && !opened.stop.disabled && opened.hint.hidden);
  opened.ask("not yet");
  assert.deepEqual(server.bodies, [{
    model: "one", stream: true, stream_options: { include_usage: true }, max_tokens: 7,
    messages: [{ role: "system", content: "Be brief." }, { role: "user", content: "Hello?" }],
  }]);
  server.comment();
  server.send({ choices: [{ delta: { reasoning_content: "Hm." } }] });
  server.says("See <b>this</b>:\n```js\nlet a;\n```\nand ");
  // One event in two pieces, cut within a character.
  const event = new TextEncoder().encode('data: {"choices":[{"delta":{"content":"é"}}]}\n\n');
  server.bytes(event.slice(0, -9));
  server.bytes(event.slice(-9));
  await until(() => opened.answers()[0].textContent.includes("é"));
  const [answer] = opened.answers();
  assert.deepEqual(answer.querySelectorAll("pre").map((piece) => piece.textContent), ["let a;"]);
  assert.ok(answer.textContent.includes("See <b>this</b>:") && answer.querySelectorAll("b").length === 0);
  assert.ok(answer.querySelectorAll("details")[0].textContent.includes("Hm."));
  server.send({ choices: [], usage: { completion_tokens: 5 } });
  server.send("[DONE]");
  await done(opened);
  assert.match(answer.textContent, /5 tokens, [\d.]+ per second, first after \d+ ms/);
  opened.prompt.value = "And?";
  opened.prompt.happens("keydown", { key: "Enter", shiftKey: true });
  assert.equal(server.bodies.length, 1, "a line begins, nothing is sent");
  opened.prompt.happens("keydown", { key: "Enter", shiftKey: false, isComposing: false });
  await server.asked(2);
  const roles = server.bodies[1].messages.map((message) => message.role);
  assert.deepEqual(roles, ["system", "user", "assistant", "user"]);
  server.send({ error: { message: "a device was lost" } });
  await done(opened);
  const problem = opened.answers()[1].querySelectorAll("div.problem")[0];
  assert.equal(problem.textContent, "a device was lost");
  console.log("ok an answer is shown as text as it comes, and so is what ends it early");
}

async function answersAreStoppedAndAskedForAgain() {
  const server = madeUp();
  const opened = open(server.fetch);
  opened.ask("One");
  await server.asked(1);
  server.says("first");
  await until(() => opened.answers()[0].textContent.includes("first"));
  opened.document.happens("keydown", { key: "Escape" });
  await done(opened);
  assert.ok(opened.answers()[0].textContent.includes("stopped"));
  opened.ask("Two");
  await server.asked(2);
  server.says("second");
  server.send("[DONE]");
  await done(opened);
  const again = opened.answers()[0].querySelectorAll("button").find((one) => one.textContent === "Again");
  again.happens("click");
  await server.asked(3);
  assert.deepEqual(server.bodies[2].messages, [{ role: "user", content: "One" }]);
  assert.equal(opened.answers().length, 1, "what followed is gone");
  server.says("third");
  await until(() => opened.answers()[0].textContent.includes("third"));
  opened.fresh.happens("click");
  await done(opened);
  assert.ok(opened.answers().length === 0 && !opened.hint.hidden);
  opened.ask("New");
  await server.asked(4);
  assert.deepEqual(server.bodies[3].messages, [{ role: "user", content: "New" }]);
  console.log("ok answers are stopped, asked for again and left for a new chat");
}

async function aKeyIsAskedFor() {
  const server = madeUp();
  server.refusal = "no API key was given";
  const opened = open(server.fetch);
  await until(() => opened.settings.open);
  await until(() => opened.hint.textContent === "no API key was given");
  assert.ok(opened.hint.className === "problem" && opened.key.focused === 1);
  server.refusal = null;
  opened.key.value = " secret ";
  opened.key.happens("change");
  await until(() => opened.model.value === "one");
  assert.equal(server.keys.at(-1), "Bearer secret");
  assert.equal(opened.hint.className, "");
  console.log("ok a key is asked for and sent");
}

async function aRealAnswerIsShown() {
  const opened = open((url, request) => fetch(process.env.MOTLEY_URL + "/" + url, request));
  await until(() => opened.model.value);
  opened.temperature.value = "0";
  opened.tokens.value = "12";
  opened.ask("Say hello to a cat named Tom.");
  await done(opened);
  const [answer] = opened.answers();
  assert.equal(answer.querySelectorAll("div.problem").length, 0, answer.textContent);
  assert.match(answer.textContent, /\d+ tokens, /);
  console.log("ok the server's answer is shown");
}

await anAnswerComesInPieces();
await answersAreStoppedAndAskedForAgain();
await aKeyIsAskedFor();
await aRealAnswerIsShown();
