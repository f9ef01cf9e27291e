// Verify what Epsilon Ledger signed or chained, outside of Python: Node 18 or newer, and nothing else.
//
//   node verify.mjs export mimic.jsonl                      what `epsilon-ledger export` wrote: the hash chains
//   node verify.mjs audit-log events.json ORGANISATION_ID   GET /v1/audit-events?order=oldest, from the first event on
//   node verify.mjs document statement.json signing.pub     a signed statement or checkpoint
//   node verify.mjs webhook SECRET headers.json body.json   a webhook that arrived in the last five minutes
//
// It exits with 1 and says why if something is not as it was made, and with 2 if it cannot read its input.
import { createHash, createHmac, createPublicKey, timingSafeEqual, verify } from "node:crypto";
import { readFileSync } from "node:fs";

class NotSound extends Error {}

function require(condition, message) {
  if (!condition) throw new NotSound(message);
}

// RFC 8785. JSON.stringify writes numbers and texts as it asks; only keys must be sorted, by UTF-16 code units.
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  return `{${Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join(",")}}`;
}

const sha256 = (...parts) => parts.reduce((hash, part) => hash.update(part), createHash("sha256")).digest();
const readJson = (file) => parseJson(readFileSync(file, "utf8"));

// JSON.parse takes the last of two members with one name, and other readers take the first. Such a text says two things.
function parseJson(text) {
  const value = JSON.parse(text), open = [];
  for (const [token, name, colon] of text.matchAll(/("(?:[^"\\]|\\.)*")(\s*:)?|[{}[\]]/g)) {
    if (token === "{" || token === "[") open.push(new Set());
    else if (token === "}" || token === "]") open.pop();
    else if (colon) {
      const names = open.at(-1), member = JSON.parse(name);
      require(!names.has(member), `the member ${shown(member)} is given twice`);
      names.add(member);
    }
  }
  return value;
}

// What somebody else wrote, so that it stays within its line and its quotes.
const shown = (text) => JSON.stringify(String(text).slice(0, 200)).replace(/[^\x20-\x7e]/g, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`);

function requireMembers(object, what, ...names) {
  const given = Object.keys(object ?? {});
  for (const name of names) require(given.includes(name), `the ${what} has no member ${name}`);
  for (const name of given) require(names.includes(name), `the ${what} has a member that is not signed: ${shown(name)}`);
}

// Each hash covers the one before it, and the text of the entry.
class Chain {
  constructor(name, genesis) {
    Object.assign(this, { name, head: sha256(canonical(genesis)), length: 0 });
  }

  add(text, position, hash) {
    require(position === this.length, `${this.name}: entry ${this.length} is missing`);
    this.head = sha256(this.head, text);
    require(this.head.toString("hex") === hash, `${this.name}, entry ${position}: its hash is that of another entry`);
    this.length += 1;
  }
}

function verifyExport(file) {
  const lines = readFileSync(file, "utf8").split("\n").filter(Boolean);
  const { organisation } = JSON.parse(lines[0]);
  const audit = new Chain("audit log", { audit_log_of: organisation });
  const runs = new Map(), chains = new Map();
  for (const line of lines) {
    const { type, hash, entry, ...rest } = JSON.parse(line);
    if (type === "event") {
      require(sha256(rest.canonical).toString("hex") === rest.fingerprint, `event ${rest.fingerprint}: it is another one`);
    } else if (type === "run") {
      runs.set(rest.id, rest);
      chains.set(rest.id, new Chain(`run ${rest.id}`, { organisation, run: rest.id }));
    } else if (type === "audit_event" || type === "decision") {
      // The line has the text that was hashed, so no number format matters.
      const before = `{"type":"${type}","hash":"${hash}","entry":`;
      require(line.startsWith(before) && line.endsWith("}"), `a line of type ${type} is not as it was written`);
      (type === "decision" ? chains.get(entry.run_id) : audit).add(line.slice(before.length, -1), entry.position, hash);
    }
    parseJson(line);  // no hash covers the names beside an entry
  }
  require(JSON.parse(lines.at(-1)).lines === lines.length, "lines are missing");
  for (const [id, run] of runs) {
    const { length, head } = chains.get(id);
    require(length === run.decisions && head.toString("hex") === run.chain_head, `run ${id}: its last decisions are missing`);
  }
  const decisions = [...chains.values()].reduce((sum, { length }) => sum + length, 0);
  return `${decisions} decisions of ${runs.size} runs, and ${audit.length} audit events`;
}

function verifyAuditLog(file, organisation) {
  const answer = readJson(file);
  const chain = new Chain("audit log", { audit_log_of: organisation });
  for (const { hash, created_at: at, before, after, ...event } of Array.isArray(answer) ? answer : answer.items) {
    const [, seconds, fraction = ""] = at.match(/^(.{19})(?:\.(\d+))?(?:Z|\+00:00)$/);
    const text = canonical({
      ...event,
      organisation_id: organisation,
      created_at: `${seconds}.${fraction.padEnd(6, "0")}+00:00`,
      before: before && canonical(before),
      after: after && canonical(after),
    });
    chain.add(text, event.position, hash);
  }
  return `${chain.length} audit events, head ${chain.head.toString("hex")}`;
}

function verifyDocument(file, keyFile) {
  const document = readJson(file), key = createPublicKey(readFileSync(keyFile));
  if (key.asymmetricKeyType !== "ed25519") throw new Error("the public key is not Ed25519");
  requireMembers(document, "document", "payload", "signature");
  const { payload, signature } = document;
  requireMembers(signature, "signature", "algorithm", "key_id", "value");
  require(signature.algorithm === "Ed25519", `the signature's algorithm is ${shown(signature.algorithm)}, and not Ed25519`);
  // The id is derived from the key: what the document says of it is not signed.
  const keyId = sha256(Buffer.from(key.export({ format: "jwk" }).x, "base64url")).toString("hex").slice(0, 16);
  require(signature.key_id === keyId, `the document names the key ${shown(signature.key_id)}, and this one is ${keyId}`);
  const value = Buffer.from(String(signature.value), "base64");
  require(value.toString("base64") === signature.value, "the signature's value is not base64");
  require(verify(null, Buffer.from(canonical(payload)), key, value), "the document is not signed by this key");
  return `signed by the key ${keyId}: ${described(payload)}`;
}

// Only what is signed: kind, organisation, subject, epsilon and date.
function described({ type, organisation, run, population, loss, ...payload }) {
  const subject = run?.path ?? population?.name;
  const audited = `${payload.audit_length} audit events, head ${payload.audit_head}`;
  const about = subject === undefined ? audited : `${shown(subject)}, ${(run ?? population).id}`;
  const epsilon = loss === undefined ? "" : `, epsilon ${loss.epsilon} of ${loss.limit.epsilon} at delta ${loss.delta}`;
  return `${type} of ${organisation} about ${about}${epsilon}, on ${payload.issued_at ?? payload.created_at}`;
}

function verifyWebhook(secret, headersFile, bodyFile) {
  const headers = Object.fromEntries(Object.entries(readJson(headersFile)).map(([name, value]) => [name.toLowerCase(), value]));
  const { "webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": signatures } = headers;
  require(Math.abs(Date.now() / 1000 - Number(timestamp)) <= 300, "the webhook is too old, or of the future");
  const key = Buffer.from(secret.replace(/^whsec_/, ""), "base64");
  const expected = createHmac("sha256", key).update(`${id}.${timestamp}.`).update(readFileSync(bodyFile)).digest();
  const isRight = ([version, value]) => {
    const given = Buffer.from(value ?? "", "base64");
    return version === "v1" && given.length === expected.length && timingSafeEqual(given, expected);
  };
  require(signatures.split(" ").map((each) => each.split(",")).some(isRight), "no signature of the webhook is right");
  return `webhook ${id}`;
}

const COMMANDS = { export: verifyExport, "audit-log": verifyAuditLog, document: verifyDocument, webhook: verifyWebhook };
const [name, ...files] = process.argv.slice(2);
if (!Object.hasOwn(COMMANDS, name ?? "") || files.length !== COMMANDS[name].length) {
  console.error("Usage: node verify.mjs export FILE | audit-log FILE ORGANISATION_ID | document FILE PUBLIC_KEY | webhook SECRET HEADERS BODY");
  process.exit(2);
}
try {
  console.log(`Sound: ${COMMANDS[name](...files)}.`);
} catch (error) {
  console.error(error instanceof NotSound ? `NOT SOUND: ${error.message}.` : `This cannot be read: ${error.message}`);
  process.exitCode = error instanceof NotSound ? 1 : 2;
}
