// Moves a one-time link's token from the address, whose part behind # is sent to no server, into the form.
const token = location.hash.slice(1);
if (token) {
  document.getElementById("token").value = token;
  history.replaceState(null, "", location.pathname);
}
