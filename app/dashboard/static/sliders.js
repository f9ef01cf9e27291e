// Adds a logarithmic slider to each `<input data-slider="from to log">`; the field also accepts numbers beyond its ends.
const STEPS = 400;

function sliderOf(field) {
  const [from, to] = field.dataset.slider.split(" ").map(Number);
  const slider = document.createElement("input");
  slider.type = "range";
  slider.min = 0;
  slider.max = STEPS;
  slider.id = `${field.id}-slider`;
  slider.setAttribute("aria-label", `${field.labels[0].textContent.trim()}, slider`);
  const show = () => {
    const share = Math.log(Number(field.value) / from) / Math.log(to / from);
    slider.value = Number.isFinite(share) ? Math.round(STEPS * Math.min(1, Math.max(0, share))) : 0;
    slider.setAttribute("aria-valuetext", field.value);
  };
  slider.addEventListener("input", () => {
    const value = from * (to / from) ** (slider.value / STEPS);
    field.value = field.step === "1" ? String(Math.round(Number(value.toPrecision(3)))) : String(Number(value.toPrecision(3)));
    slider.setAttribute("aria-valuetext", field.value);
  });
  field.addEventListener("input", show);
  show();
  field.before(slider);
}

for (const field of document.querySelectorAll("input[data-slider]")) sliderOf(field);
