// The one place that names this package: a site has it bundled, under the same name.
export { Environment, Interpreter, Template } from "@huggingface/jinja";
