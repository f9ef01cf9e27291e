// Adds a copy button to each `<pre data-copy="name">`.
const message = document.getElementById("message");
let timer = 0;

function say(words) {
  message.textContent = words;
  clearTimeout(timer);
  timer = setTimeout(() => { message.textContent = ""; }, 4000);
}

async function copy(text, name) {
  try {
    await navigator.clipboard.writeText(text);
    say(`Copied: ${name}.`);
  } catch {
    say("This browser does not allow copying; select the text instead.");
  }
}

function offer() {
  for (const text of document.querySelectorAll("pre[data-copy]")) {
    if (text.previousElementSibling?.classList.contains("copies")) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet copies";
    button.textContent = "Copy";
    button.setAttribute("aria-label", `Copy: ${text.dataset.copy}`);
    button.addEventListener("click", () => copy(text.textContent, text.dataset.copy));
    text.before(button);
  }
}

offer();
document.addEventListener("page:changed", offer);
