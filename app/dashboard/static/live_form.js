// A form whose answer stands on its own page, `<form data-ask>`: it asks while one writes or slides, and live_update.js puts
// what has changed in its place. Without script the same form loads the page anew.
const PAUSE = 120;
let asking = null, timer = 0;

function addressOf(form) {
  const given = [...new FormData(form)].filter(([, value]) => value !== "");
  return `${form.getAttribute("action")}?${new URLSearchParams(given)}`;
}

// Errors of a field are in the region "<id>-fault" beside it.
function mark(form) {
  for (const field of form.elements) {
    const fault = field.id && document.getElementById(`${field.id}-fault`);
    if (fault) field.setAttribute("aria-invalid", String(fault.textContent.trim() !== ""));
  }
}

async function ask(form) {
  clearTimeout(timer);
  asking?.abort();
  asking = new AbortController();
  const address = addressOf(form);
  const answer = document.querySelector(form.dataset.ask);
  answer?.setAttribute("aria-busy", "true");
  try {
    const reply = await fetch(address, { headers: { "X-Part": "page" }, signal: asking.signal, credentials: "same-origin" });
    if (reply.status === 401) return location.assign(address);
    if (!reply.ok) throw new Error(`status ${reply.status}`);
    const text = await reply.text();
    history.replaceState(null, "", address);
    document.dispatchEvent(new CustomEvent("page:came", { detail: { text, tag: reply.headers.get("ETag") || "" } }));
    mark(form);
  } catch (error) {
    if (error.name === "AbortError") return;
    document.getElementById("message").textContent = "The service did not answer. The previous result is shown.";
    setTimeout(() => { document.getElementById("message").textContent = ""; }, 5000);
  }
  answer?.removeAttribute("aria-busy");
}

for (const form of document.querySelectorAll("form[data-ask]")) {
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(ask, PAUSE, form);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask(form);
  });
}
