// The form that changes a limit, `<form data-limit>`: says while one types what becomes of epsilon and delta, whether that
// raises or lowers the limit, and what follows. The confirmation of api_forms.js says the same.
const written = (number) => (Math.abs(number) < 1e-4 && number !== 0 ? number.toExponential() : String(number));

const moved = (name, before, after) => (before === after ? `${name} stays ${written(after)}`
  : `${name} ${after > before ? "rises" : "falls"} from ${written(before)} to ${written(after)}`);

function describe(form) {
  const field = (name) => form.elements[`limit.${name}`];
  const [epsilon, delta] = ["epsilon", "delta"].map((name) => field(name).valueAsNumber);
  if (![epsilon, delta].every((each) => each > 0)) return null;
  const before = { epsilon: Number(form.dataset.epsilon), delta: Number(form.dataset.delta) };
  const changes = [moved("Epsilon", before.epsilon, epsilon), moved("delta", before.delta, delta)].join(", ");
  if (epsilon === before.epsilon && delta === before.delta) return { words: "This is the present limit.", kind: "" };
  const raises = epsilon > before.epsilon || delta > before.delta;
  const mixed = raises && (epsilon < before.epsilon || delta < before.delta);
  const which = mixed ? "It raises one of them, which" : `This ${raises ? "raises" : "lowers"} the limit, which`;
  return { words: `${changes}. ${which} ${raises ? form.dataset.raising : form.dataset.lowering}.`, kind: raises ? "raise" : "lower" };
}

function update(form) {
  const found = describe(form), button = form.querySelector("button");
  const how = found?.kind && {
    raise: form.dataset.alone === undefined ? ["Propose the higher limit?", "Propose it"] : ["Raise the limit?", "Raise the limit"],
    lower: ["Lower the limit?", "Lower the limit"],
  }[found.kind];
  form.querySelector("[data-change]").textContent = found ? found.words : "Write a positive number in both fields.";
  [form.dataset.title, form.dataset.yes] = how || ["Change the limit?", "Change the limit"];
  if (found) form.dataset.confirm = `${form.dataset.limit}: ${found.words}`;
  button.textContent = how ? how[1] : "Change the limit";
}

for (const form of document.querySelectorAll("form[data-limit]")) {
  form.addEventListener("input", () => update(form));
  update(form);
}
