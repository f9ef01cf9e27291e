// Shows Swagger UI. The session cookie allows requests that read; others need an API key.
const place = document.getElementById("docs");

// A link within the button that opens an operation cannot be reached by a screen reader; the button sets the address, too.
const textOfLinks = ({ React }) => ({
  wrapComponents: { DeepLink: () => ({ text }) => React.createElement("span", null, text) },
});

// Swagger UI leaves out the second level of headings, and landmarks for what is above its operations.
function mendOutline() {
  for (const heading of place.querySelectorAll("h3, h4, h5, h6")) {
    const level = String(Number(heading.localName[1]) - 1);
    if (heading.getAttribute("aria-level") !== level) heading.setAttribute("aria-level", level);
  }
  for (const [part, label] of [[".information-container", "About this API"], [".scheme-container", "Authorization"]]) {
    for (const found of place.querySelectorAll(`${part}:not([role])`)) {
      found.setAttribute("role", "region");
      found.setAttribute("aria-label", label);
    }
  }
}
new MutationObserver(mendOutline).observe(place, { childList: true, subtree: true });

SwaggerUIBundle({
  url: place.dataset.description,
  domNode: place,
  deepLinking: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
  plugins: [textOfLinks],
});
