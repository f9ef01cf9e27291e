// Sends forms to the API: `<form data-call="POST /v1/api-keys">` collects its fields to JSON, asks for confirmation
// (data-confirm, data-yes, data-reason), sends the request once, and shows the outcome (data-done, data-done201,
// data-then, data-then202, data-shows for a secret). A button's data- attributes win over its form's. templates/api_forms.html has macros.
const SLOWEST = 60000, MESSAGE_MILLISECONDS = 9000;
const UNKNOWN = "The outcome is unknown. It is safe to repeat: the same request is never applied twice.";
const UNKNOWN_SECRET = "The outcome is unknown. Check whether it exists before you repeat it.";
const keys = new Map(); // Idempotency-Key of each request whose outcome is unknown
const underway = new Set(), labels = new WeakMap();
const message = document.getElementById("message");
const csrf = document.querySelector('meta[name="csrf-token"]')?.content || "";
let clearing = 0, counted = 0;

class WrongField extends Error {
  constructor(name, words) { super(words); this.faults = [{ field: name, message: words }]; }
}

function make(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// Small numbers are written as 1e-5, as everywhere on the pages.
const written = (value) => (typeof value === "number" && value !== 0 && Math.abs(value) < 1e-4 ? value.toExponential() : value);
// A part of the body is written with its members: the limit as "epsilon 3, delta 1e-5".
const members = (values, name) => Object.entries(values).filter(([each]) => each.startsWith(`${name}.`))
  .map(([each, value]) => `${each.slice(name.length + 1)} ${written(value)}`).join(", ") || undefined;
const filled = (text, values) => text.replace(/\{([\w.-]+)\}/g, (place, name) => written(values[name]) ?? members(values, name) ?? place);

function itemsOf(field) {
  let items;
  if (field.type === "checkbox") items = field.checked ? [field.value] : [];
  else if (field.localName === "select") items = [...field.selectedOptions].map((each) => each.value);
  else items = field.value.split(/[,\s]+/).filter(Boolean);
  return field.dataset.item === "number" ? items.map((each) => numberOf(field, each)) : items;
}

function numberOf(field, text) {
  const number = Number(text);
  if (!Number.isFinite(number)) throw new WrongField(field.name, `“${text}” is not a number`);
  return number;
}

const linesOf = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

// Labels as a merge patch: those that were taken out of the field become null.
function labelsOf(field) {
  const read = (text) => linesOf(text).map((line) => {
    const [, key, value] = line.match(/^([^:]+?)\s*:\s*(.*)$/) || [null, line, ""];
    return [key, value];
  });
  const removed = read(field.defaultValue).map(([key]) => [key, null]);
  return Object.fromEntries([...removed, ...read(field.value)]);
}

function linkOf(field, line) {
  const [, title, url] = line.match(/^(.+)\s+(\S+)$/) || [];
  if (!url) throw new WrongField(field.name, `write a title and an address: “${line}”`);
  return { title: title.trim(), url };
}

function valueOf(field) {
  const type = field.dataset.type;
  if (field.type === "checkbox") return field.checked;
  if (type === "labels") return labelsOf(field);
  if (type === "links") return linesOf(field.value).map((line) => linkOf(field, line));
  if (field.value === "") return field.hasAttribute("data-null") ? null : field.hasAttribute("data-keep") ? "" : undefined;
  if (type === "number") return numberOf(field, field.value);
  if (type === "days") return Math.round(86400 * numberOf(field, field.value));
  if (type === "percent") return Number((numberOf(field, field.value) / 100).toPrecision(12));
  if (type === "boolean") return field.value === "true";
  if (type === "day") return `${field.value}T00:00:00Z`;
  if (type === "moment") return new Date(`${field.value}Z`).toISOString();
  if (type !== "json") return field.value;
  try { return JSON.parse(field.value); } catch { throw new WrongField(field.name, "this is not JSON"); }
}

// `<div data-unless-empty>` is left out while none of its visible fields has a value.
const isLeftOut = (field) => {
  const part = field.closest("[data-unless-empty]");
  return part !== null && [...part.querySelectorAll("input:not([type=hidden])")].every((each) => each.value === "");
};

function collect(form) {
  const found = new Map();
  for (const field of form.elements) {
    if (!field.name || field.matches(":disabled") || field.localName === "button" || (field.type === "radio" && !field.checked)) continue;
    if (isLeftOut(field)) continue;
    if (field.dataset.type === "list") {
      const items = [...(found.get(field.name) || []), ...itemsOf(field)];
      if (items.length || field.hasAttribute("data-keep")) found.set(field.name, items);
    } else {
      const value = valueOf(field);
      if (value !== undefined) found.set(field.name, value);
    }
  }
  return found;
}

function nested(found) {
  const body = {};
  for (const [name, value] of found) {
    const parts = name.split("."), last = parts.pop(), inside = [...parts.slice(1), last];
    parts.reduce((inner, part, place) => (inner[part] ??= /^\d+$/.test(inside[place]) ? [] : {}), body)[last] = value;
  }
  return body;
}

// The request of a form: placeholders in the address take fields, the others go into the body.
function requestOf(form, how) {
  const found = collect(form), shown = Object.fromEntries(found);
  const [method, address] = how.call.split(" ");
  const path = address.replace(/\{([\w.-]+)\}/g, (_, name) => {
    const value = found.get(name);
    found.delete(name);
    if (value === undefined) throw new WrongField(name, "required");
    return encodeURIComponent(value);
  });
  for (const place of how.with ? how.with.split(" ") : []) nestedDefault(found, place);
  return { method, path, found, shown };
}

// A part of the body that is sent even if it is empty, such as a policy without rules.
function nestedDefault(found, place) {
  if (![...found.keys()].some((name) => name.startsWith(`${place}.`))) found.set(place, {});
}

async function send({ method, path, found }, how) {
  const dense = (_, value) => (Array.isArray(value) ? value.filter(() => true) : value); // of lists whose parts are left out
  const body = found.size ? JSON.stringify(nested(found), dense) : undefined;
  const same = `${method} ${path} ${body}`, headers = { "X-CSRF-Token": csrf };
  if (body) headers["Content-Type"] = "application/json";
  if (how.ifMatch) headers["If-Match"] = how.ifMatch;
  if (!how.shows) {
    if (!keys.has(same)) keys.set(same, crypto.randomUUID?.() || [...crypto.getRandomValues(new Uint32Array(4))].join("-"));
    headers["Idempotency-Key"] = keys.get(same);
  }
  const reply = await fetch(path, { method, headers, body, credentials: "same-origin", signal: AbortSignal.timeout(SLOWEST) });
  const text = await reply.text();
  if (reply.status < 500) keys.delete(same);
  let answer = {};
  try { answer = JSON.parse(text); } catch { /* an answer without content, or of something in between */ }
  return { status: reply.status, answer };
}

// The field of an error: of this name, the first one inside it, or one that it is inside of.
const fieldOf = (form, name) => {
  const fields = [...form.elements].filter((each) => each.name && each.type !== "hidden" && !each.matches(":disabled"));
  const parts = name.replace(/^body\./, "").replace(/\[(\d+)\]/g, ".$1").split(".");
  for (; parts.length; parts.pop()) {
    const wanted = parts.join(".");
    const found = fields.find((each) => each.name === wanted) || fields.find((each) => each.name.startsWith(`${wanted}.`));
    if (found) return found;
  }
  return null;
};

// Fields of errors that name none, by the policy's rule or by the code: the first one that the form has.
const EVENTS = ["planned", "event", "trials"];
const FIELDS = {
  max_epsilon: ["limit.epsilon"], max_delta: ["limit.delta"], require_delta_below_inverse_size: ["limit.delta"],
  neighboring_relations: ["neighboring_relation"], require_limit: ["limit.epsilon"], require_plan: ["planned"],
  mechanisms: EVENTS, min_noise_multiplier: EVENTS, unsupported_event: EVENTS, invalid_event: EVENTS,
  computation_limit_exceeded: EVENTS, name_taken: ["name"], limit_too_small: ["limit.epsilon"],
  delta_too_large: ["limit.delta"], not_found: ["budget", "scope", "account"],
};

// The errors of an answer with their fields, where they have some.
function faultsOf(form, { errors, field, rule, code, detail }) {
  if (errors) return errors;
  const place = (field ? [field] : FIELDS[rule] || FIELDS[code] || []).find((each) => fieldOf(form, each));
  return place ? [{ field: place, message: detail }] : [];
}

function clear(form) {
  for (const each of form.querySelectorAll("[data-made]")) each.remove();
  for (const each of form.elements) {
    if (!each.hasAttribute("aria-invalid")) continue;
    each.removeAttribute("aria-invalid");
    if (each.dataset.described) each.setAttribute("aria-describedby", each.dataset.described);
    else each.removeAttribute("aria-describedby");
  }
}

// Shows errors at their fields, and the others before the button.
function complain(form, words, faults = []) {
  clear(form);
  const others = [];
  let first = null;
  for (const { field, message } of faults) {
    const wrong = fieldOf(form, field);
    if (!wrong) { others.push(`${field.replace(/^body\./, "")}: ${message}`); continue; }
    const id = `fault-${++counted}`, note = make("p", { id, className: "fault", textContent: message });
    note.dataset.made = "";
    (wrong.closest("fieldset[data-field]") || wrong.closest("label") || wrong).after(note);
    wrong.dataset.described ??= wrong.getAttribute("aria-describedby") || "";
    wrong.setAttribute("aria-describedby", `${wrong.dataset.described} ${id}`.trim());
    wrong.setAttribute("aria-invalid", "true");
    first ??= wrong;
  }
  const all = first ? others.join("; ") : words;
  if (all) {
    const note = make("p", { className: "fault", textContent: all });
    note.dataset.made = "";
    note.setAttribute("role", "alert");
    const buttons = form.querySelector("[data-buttons]") || form.querySelector("button:not([type=button])");
    if (buttons) buttons.before(note);
    else form.append(note);
  }
  (first || form.querySelector("button:not([type=button])"))?.focus();
}

function tell(words) {
  clearTimeout(clearing);
  message.textContent = words;
  clearing = setTimeout(() => { message.textContent = ""; }, MESSAGE_MILLISECONDS);
}

function busy(button, on) {
  if (!button || button.disabled === on) return;
  button.disabled = on;
  if (on) labels.set(button, [...button.childNodes]);
  button.replaceChildren(...(on ? ["Sending…"] : labels.get(button)));
}

function dialogOf(title, ...content) {
  const heading = make("h2", { id: `dialog-${++counted}`, textContent: title });
  const dialog = make("dialog", {}, heading, ...content);
  dialog.setAttribute("aria-labelledby", heading.id);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  return dialog;
}

// Asks for confirmation; the dialog stays open until the request succeeds, and shows its errors.
function ask(form, how, request) {
  const yes = make("button", { className: how.danger === undefined ? "strong" : "danger", textContent: how.yes || "Do it" });
  const no = make("button", { type: "button", textContent: "Cancel" });
  const buttons = make("div", { className: "row" }, yes, no);
  buttons.dataset.buttons = "";
  const inner = make("form", { className: "stack", method: "dialog" }), words = make("p", { textContent: filled(how.confirm, request.shown) });
  inner.append(words);
  if (how.reason) {
    const id = `reason-${++counted}`;
    const reason = make("textarea", { id, name: how.reason, rows: 3, maxLength: 2000, required: true });
    inner.append(make("label", { htmlFor: id, textContent: "Reason, recorded in the audit log" }), reason);
  }
  inner.append(buttons);
  const dialog = dialogOf(how.title || how.yes || "Are you sure?", inner);
  no.addEventListener("click", () => dialog.close());
  inner.addEventListener("submit", (event) => {
    event.preventDefault();
    const found = new Map(request.found);
    if (how.reason) found.set(how.reason, inner.elements[how.reason].value);
    go(form, how, { ...request, found }, yes, inner, dialog);
  });
  dialog.showModal();
  (inner.querySelector("textarea") || no).focus();
}

function showOnce(how, secret) {
  return new Promise((done) => {
    const field = make("input", { type: "text", readOnly: true, value: secret, id: `secret-${++counted}`, autocomplete: "off", spellcheck: false });
    const copy = make("button", { type: "button", className: "strong", textContent: "Copy" });
    const kept = make("button", { type: "button", textContent: "I have saved it" });
    const note = make("p", { className: "hint" });
    note.setAttribute("role", "status");
    const words = "It is shown only once and is not stored. Save it now in a safe place.";
    const label = make("label", { htmlFor: field.id, textContent: how.showsName || how.shows });
    const row = make("div", { className: "row" }, copy, kept);
    const dialog = dialogOf(how.showsTitle || "Save this now", make("p", { textContent: words }), make("div", { className: "stack" }, label, field, row, note));
    copy.addEventListener("click", async () => {
      field.select();
      try { await navigator.clipboard.writeText(secret); note.textContent = "Copied."; }
      catch { note.textContent = "This browser does not allow copying; the text is selected, copy it by hand."; }
    });
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("close", () => { field.value = ""; done(); });
    kept.addEventListener("click", () => dialog.close());
    dialog.showModal();
    copy.focus();
  });
}

// Shows the outcome and refreshes the page.
async function finish(form, how, button, status, answer) {
  if (how.shows && answer[how.shows]) await showOnce(how, answer[how.shows]);
  const words = filled(how[`done${status}`] || how.done || "Done.", answer), then = how[`then${status}`] || how.then;
  if (then) {
    sessionStorage.setItem("message", words);
    location.assign(filled(then, answer));
    return;
  }
  busy(button, false);
  if (form.hasAttribute("data-reset")) form.reset();
  tell(words);
  document.addEventListener("page:changed", () => {
    if (document.activeElement === document.body) document.getElementById("page")?.focus({ preventScroll: true });
  }, { once: true });
  document.dispatchEvent(new CustomEvent("page:refresh"));
}

// Sends the request, once, and shows errors where they can be corrected.
async function go(form, how, request, button, shown, dialog) {
  const same = `${request.method} ${request.path}`;
  if (underway.has(same)) return;
  underway.add(same);
  clear(shown);
  busy(button, true);
  try {
    const { status, answer } = await send(request, how);
    if (status === 401) { location.assign(`/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`); return; }
    if (status < 300) { dialog?.close(); await finish(form, how, button, status, answer); return; }
    const words = answer.detail || `The service answered ${status}${status >= 500 ? `. ${how.shows ? UNKNOWN_SECRET : UNKNOWN}` : "."}`;
    const faults = faultsOf(form, answer);
    const mendable = dialog && faults.some(({ field }) => fieldOf(form, field));
    busy(button, false);
    if (mendable) dialog.close();
    complain(mendable ? form : shown, status === 412 ? `${words} Reload the page to see the current state.` : words, faults);
  } catch (error) {
    busy(button, false);
    if (how.shows) document.dispatchEvent(new CustomEvent("page:refresh"));
    complain(shown, `The service is not reachable. ${how.shows ? UNKNOWN_SECRET : UNKNOWN}`);
    if (!(error instanceof TypeError || error instanceof DOMException)) throw error;
  } finally {
    underway.delete(same);
  }
}

// `<fieldset data-when="id=value">` takes part only while the field with that id has that value.
function applyWhen() {
  for (const part of document.querySelectorAll("fieldset[data-when]")) {
    const [id, value] = part.dataset.when.split("=");
    part.hidden = part.disabled = document.getElementById(id).value !== value;
  }
}
document.addEventListener("change", applyWhen);
document.addEventListener("reset", () => setTimeout(applyWhen));
applyWhen();

document.addEventListener("submit", (event) => {
  const form = event.target, how = { ...form.dataset, ...event.submitter?.dataset };
  if (!how.call) return;
  event.preventDefault();
  clear(form);
  let request;
  try { request = requestOf(form, how); } catch (error) {
    if (!(error instanceof WrongField)) throw error;
    complain(form, error.message, error.faults);
    return;
  }
  if (how.confirm) ask(form, how, request);
  else go(form, how, request, event.submitter, form, null);
});

const before = sessionStorage.getItem("message");
if (before) { sessionStorage.removeItem("message"); tell(before); }
