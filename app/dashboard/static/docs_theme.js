// Sets the theme of Swagger UI before anything is shown, and when the preference changes.
{
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
  apply();
  dark.addEventListener("change", apply);
}
