// Shows Swagger UI. The session cookie allows requests that read; others need an API key.
const place = document.getElementById("docs");

SwaggerUIBundle({
  url: place.dataset.description,
  domNode: place,
  deepLinking: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
});
