// The one place that names this package: a site has it bundled, under the same name. All of it is passed on, as bundlers
// refuse names that they do not find where this optional package is not installed.
export * from "@huggingface/jinja";
