// The form that changes a limit, `<form data-limit>`: says while one types what becomes of it, whether that raises or lowers
// it, and what follows. The confirmation of api_forms.js says the same.
const written = (number) => (Math.abs(number) < 1e-4 && number !== 0 ? number.toExponential() : String(number));

const moved = (name, before, after) => (before === after ? `${name} stays ${written(after)}`
  : `${name} ${after > before ? "rises" : "falls"} from ${written(before)} to ${written(after)}`);

const titled = (word) => word[0].toUpperCase() + word.slice(1);

function describe(form) {
  const field = (name) => [...form.elements].find((each) => each.name === `limit.${name}` && !each.matches(":disabled"));
  const unit = form.querySelector("#limit-unit").value, before = { value: Number(form.dataset.value), delta: Number(form.dataset.delta) };
  const value = field(unit)?.valueAsNumber, wanted = field("delta")?.value, delta = wanted ? Number(wanted) : 0;
  if (!(value > 0) || !(delta >= 0) || (unit === "epsilon" && !wanted)) return null;
  if (unit !== form.dataset.unit || (unit === "epsilon" && !delta !== !before.delta)) {
    return { words: `The unit becomes ${delta || unit !== "epsilon" ? unit : "pure epsilon"}, which ${form.dataset.raising}.`, kind: "raise" };
  }
  const changes = [moved(titled(unit), before.value, value), ...(delta || before.delta ? [moved("delta", before.delta, delta)] : [])].join(", ");
  if (value === before.value && delta === before.delta) return { words: "This is the present limit.", kind: "" };
  const raises = value > before.value || delta > before.delta;
  const mixed = raises && (value < before.value || delta < before.delta);
  const which = mixed ? "It raises one of them, which" : `This ${raises ? "raises" : "lowers"} the limit, which`;
  return { words: `${changes}. ${which} ${raises ? form.dataset.raising : form.dataset.lowering}.`, kind: raises ? "raise" : "lower" };
}

function update(form) {
  const found = describe(form), button = form.querySelector("button");
  const how = found?.kind && {
    raise: form.dataset.alone === undefined ? ["Propose the higher limit?", "Propose it"] : ["Raise the limit?", "Raise the limit"],
    lower: ["Lower the limit?", "Lower the limit"],
  }[found.kind];
  form.querySelector("[data-change]").textContent = found ? found.words : "Write positive numbers.";
  [form.dataset.title, form.dataset.yes] = how || ["Change the limit?", "Change the limit"];
  if (found) form.dataset.confirm = `${form.dataset.limit}: ${found.words}`;
  button.textContent = how ? how[1] : "Change the limit";
}

for (const form of document.querySelectorAll("form[data-limit]")) {
  for (const each of ["input", "change"]) form.addEventListener(each, () => update(form)); // the unit's fields follow it
  update(form);
}
