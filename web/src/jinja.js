// The one place that names this package: a site has it bundled, under the same name.
export { Template } from "@huggingface/jinja";
