// Polls a visible page with its entity tag and replaces the regions that changed.
const EVERY = 4000, SLOWEST = 60000;
const main = document.getElementById("page");
const live = document.getElementById("live");
let tag = main.dataset.tag || "", pause = EVERY, timer = 0, asking = null;

const regions = () => [...document.querySelectorAll("[data-live]")];

function keep(fresh, old) {
  for (const each of old.querySelectorAll("details[id]")) {
    const same = fresh.querySelector(`#${CSS.escape(each.id)}`);
    if (same) same.open = each.open;
  }
}

// A dialog is open in it, or a field has unsent input.
const isInUse = (region) => region.contains(document.querySelector("dialog[open]"))
  || [...region.querySelectorAll("input, textarea")].some((each) => (
    ["checkbox", "radio"].includes(each.type) ? each.checked !== each.defaultChecked : each.value !== each.defaultValue));

// Returns whether all changed regions were replaced; `sent`: input was sent and need not stay.
function put(text, sent) {
  const fresh = document.createElement("template");
  fresh.innerHTML = text;
  localTime.rewrite(fresh.content); // else every time would differ from what is shown
  let whole = true;
  for (const old of regions()) {
    const now = fresh.content.getElementById(old.id);
    if (!now || now.isEqualNode(old)) continue;
    if (!sent && isInUse(old)) {
      whole = false;
      continue;
    }
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    keep(now, old);
    old.replaceWith(now);
    const again = focused && (focused.id ? document.getElementById(focused.id)
      : [...now.querySelectorAll(focused.localName)].find((each) => each.getAttribute("href") === focused.getAttribute("href")));
    again?.focus({ preventScroll: true });
  }
  document.dispatchEvent(new CustomEvent("page:changed"));
  return whole;
}

async function ask(sent = false) {
  asking?.abort();
  asking = new AbortController();
  const headers = { "X-Part": "page" };
  if (tag) headers["If-None-Match"] = tag;
  try {
    const reply = await fetch(location.href, { headers, signal: asking.signal, credentials: "same-origin" });
    if (reply.status === 401) return location.reload();
    if (reply.status === 200) tag = put(await reply.text(), sent) ? reply.headers.get("ETag") || "" : "";
    else if (reply.status !== 304) throw new Error(`status ${reply.status}`);
    pause = EVERY;
    say(`Up to date at ${localTime.clock(new Date())}`);
  } catch (error) {
    if (error.name === "AbortError") return;
    pause = Math.min(2 * pause, SLOWEST);
    say("The service does not answer. This page may be out of date.");
  }
  plan();
}

function say(words) {
  live.hidden = false;
  live.textContent = words;
}

function plan() {
  clearTimeout(timer);
  if (document.visibilityState === "visible") timer = setTimeout(ask, pause);
}

// A live form has fetched the page at its new address: drop older responses.
document.addEventListener("page:came", ({ detail }) => {
  asking?.abort();
  tag = detail.tag;
  put(detail.text);
  plan();
});

if (main.querySelector("[data-live]")) {
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible") ask();
    else { clearTimeout(timer); asking?.abort(); }
  });
  document.addEventListener("page:refresh", () => ask(true));
  plan();
}
