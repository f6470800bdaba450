// Swagger UI for the OpenAPI document of this gateway; nothing is loaded from other hosts.
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger",
  deepLinking: true,
  validatorUrl: null,
  defaultModelsExpandDepth: 0,
});
