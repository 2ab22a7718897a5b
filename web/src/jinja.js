// The only import of this optional package, which a site bundles under the same file name. `export *`, because bundlers
// reject named exports of a package that is not installed.
export * from "@huggingface/jinja";
