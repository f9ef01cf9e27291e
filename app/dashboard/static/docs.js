// Shows the API's description. Who is signed in here asks with the session's cookie: that reads, and what writes takes a key.
const place = document.getElementById("docs");

SwaggerUIBundle({
  url: place.dataset.description,
  domNode: place,
  deepLinking: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
});
