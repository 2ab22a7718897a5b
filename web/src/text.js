// Between text and tokens. `Detokenizer` gives out whole characters only; `StopStrings` gives out nothing that may
// still turn out to be the beginning of a stop string. Nothing here knows of a GPU.
import { InvalidInput } from "./errors.js";

/** @typedef {import("./template.js").Message} Message */
/** @typedef {{decode(tokens: number[]): string}} Decoder */

const CONTEXT = 8; // tokens of the prompt that decide how the first new ones are written: with a space before, say
const INCOMPLETE = "\ufffd"; // what an incomplete character is decoded to

/** A `tokenizer.json` with what `tokenizer_config.json` says about special tokens and chats. */
export class Tokenizer {
  #library;
  #addsBos;

  /** Use `Tokenizer.open`.
   * @param {import("@huggingface/tokenizers").Tokenizer} library
   * @param {Record<string, any>} config
   * @param {import("./template.js").ChatTemplate | null} chat
   */
  constructor(library, config, chat) {
    this.#library = library;
    this.#addsBos = Boolean(config.add_bos_token);
    /** The chat template; null if there is none. */
    this.chat = chat;
    const special = specialTokens(config);
    this.bos = this.idOf(special.bos_token);
    this.eos = this.idOf(special.eos_token);
  }

  /**
   * From what the files hold: `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja`.
   * @param {object} json
   * @param {Record<string, any>} [config]
   * @param {string | null} [template]
   */
  static async open(json, config = {}, template = null) {
    const library = await import("./tokenizers.js");
    const source = template ?? config.chat_template;
    const chat = source ? new (await import("./template.js")).ChatTemplate(
      source, specialTokens(config), await import("./jinja.js"),
    ) : null;
    try {
      // What the library would take from the config, Python's does not.
      return new Tokenizer(new library.Tokenizer(json, { clean_up_tokenization_spaces: false }), config, chat);
    } catch (error) {
      throw new InvalidInput(`the tokenizer is not one that can be used: ${/** @type {Error} */ (error).message}`);
    }
  }

  /**
   * The id of a token by its text; null if there is none.
   * @param {string | undefined} token
   * @returns {number | null}
   */
  idOf(token) {
    return token === undefined ? null : this.#library.token_to_id(token) ?? null;
  }

  /**
   * The tokens of a text, with the special ones that the tokenizer puts around it.
   * @param {string} text
   */
  encode(text) {
    const ids = this.#encode(text, true);
    return this.#addsBos && this.bos !== null && ids[0] !== this.bos ? [this.bos, ...ids] : ids;
  }

  /**
   * The tokens of a conversation, up to where the model's next message begins.
   * @param {Message[]} messages
   */
  encodeChat(messages) {
    if (!this.chat)
      throw new InvalidInput("this model cannot chat: it has no chat template; give it a text to continue");
    return this.#encode(this.chat.render(messages), false);
  }

  /**
   * The text of tokens, without special ones; an incomplete character is U+FFFD.
   * @param {number[]} tokens
   * @returns {string}
   */
  decode(tokens) {
    const known = tokens.filter((id) => this.#library.id_to_token(id) !== undefined);
    return known.length ? this.#library.decode(known, { skip_special_tokens: true }) : "";
  }

  /** @param {string} text @param {boolean} special @returns {number[]} */
  #encode(text, special) {
    // A character that the vocabulary lacks has no id where there is no token for the unknown.
    const { ids } = this.#library.encode(text, { add_special_tokens: special });
    return ids.filter((/** @type {number | undefined} */ id) => id !== undefined);
  }
}

/** The texts of special tokens: `"<s>"`, or `{"content": "<s>", …}`.
 * @param {Record<string, any>} config
 * @returns {Record<string, string>}
 */
function specialTokens(config) {
  const named = Object.entries(config).filter(([name]) => name.endsWith("_token"));
  const texts = named.map(([name, value]) => [name, value?.content ?? value]);
  return Object.fromEntries(texts.filter(([, text]) => typeof text === "string"));
}

/** Text from tokens that come one by one. What `push` returns, joined, is what decoding them all at once gives. */
export class Detokenizer {
  #decoder;
  /** @type {number[]} */
  #tokens;
  #known; // tokens whose text was given out
  #shown;

  /** @param {Decoder} decoder @param {number[]} [prompt] */
  constructor(decoder, prompt = []) {
    this.#decoder = decoder;
    this.#tokens = prompt.slice(-CONTEXT);
    if (decoder.decode(this.#tokens).endsWith(INCOMPLETE)) this.#tokens = [];
    this.#known = this.#tokens.length;
    this.#shown = decoder.decode(this.#tokens);
  }

  /** The characters that this token completes.
   * @param {number} token
   */
  push(token) {
    this.#tokens.push(token);
    const text = this.#decoder.decode(this.#tokens);
    return text.endsWith(INCOMPLETE) ? "" : this.#give(text);
  }

  /** What is left, complete or not. */
  finish() {
    return this.#give(this.#decoder.decode(this.#tokens));
  }

  /** @param {string} text */
  #give(text) {
    const fresh = text.slice(this.#shown.length);
    if (fresh) this.#tokens = this.#tokens.slice(this.#known); // enough to write the next one correctly
    this.#known = this.#tokens.length;
    this.#shown = this.#decoder.decode(this.#tokens);
    return fresh;
  }
}

/** Text passes through until one of the stop strings is complete; neither it nor a part of it does. */
export class StopStrings {
  #stops;
  #held = "";
  stopped = false;

  /** @param {string[]} stops */
  constructor(stops) {
    this.#stops = stops.filter((stop) => stop);
  }

  /** The text that is certainly before any stop string.
   * @param {string} text
   */
  push(text) {
    if (this.stopped) return "";
    this.#held += text;
    let end = Infinity, first = -1;
    for (const stop of this.#stops) {
      const at = this.#held.indexOf(stop), until = at + stop.length;
      if (at >= 0 && (until < end || (until === end && at < first))) [end, first] = [until, at];
    }
    this.stopped = first >= 0;
    if (this.stopped) return this.#take(first);
    return this.#take(this.#held.length - Math.max(0, ...this.#stops.map((stop) => overlap(this.#held, stop))));
  }

  /** What was held back, as nothing comes any more. */
  finish() {
    return this.stopped ? "" : this.#take(this.#held.length);
  }

  /** @param {number} count */
  #take(count) {
    const taken = this.#held.slice(0, count);
    this.#held = this.#held.slice(count);
    return taken;
  }
}

/** How many characters at the end of `text` may be the beginning of `stop`.
 * @type {(text: string, stop: string) => number}
 */
function overlap(text, stop) {
  let count = Math.min(stop.length - 1, text.length);
  while (count && !text.endsWith(stop.slice(0, count))) count--;
  return count;
}
