// Conversion between text and tokens. `Detokenizer` returns complete characters only; `StopStrings` holds back text
// that may be the beginning of a stop string. Independent of the GPU.
import { InvalidInput } from "./errors.js";

/** @typedef {import("./template.js").Message} Message */
/** @typedef {{decode(tokens: number[]): string}} Decoder */

const CONTEXT = 8; // last tokens of the prompt; they decide, say, whether the first new token begins with a space
const INCOMPLETE = "\ufffd"; // the decoder's output for an incomplete character

/** A tokenizer from `tokenizer.json`, with the special tokens and chat template of `tokenizer_config.json`. */
export class Tokenizer {
  #library;
  #addsBos;

  /** Creates a tokenizer from loaded parts; call `Tokenizer.open` instead.
   * @param {import("@huggingface/tokenizers").Tokenizer} library
   * @param {Record<string, any>} config
   * @param {import("./template.js").ChatTemplate | null} chat
   */
  constructor(library, config, chat) {
    this.#library = library;
    this.#addsBos = Boolean(config.add_bos_token);
    /** The chat template, or null. */
    this.chat = chat;
    const special = specialTokens(config);
    this.bos = this.idOf(special.bos_token);
    this.eos = this.idOf(special.eos_token);
  }

  /**
   * Returns a tokenizer from the contents of `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`.
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
      // Without the real config: the Python library ignores settings that this library would read from it.
      return new Tokenizer(new library.Tokenizer(json, { clean_up_tokenization_spaces: false }), config, chat);
    } catch (error) {
      throw new InvalidInput(`unsupported tokenizer: ${/** @type {Error} */ (error).message}`);
    }
  }

  /**
   * Returns the id of the token with this text, or null.
   * @param {string | undefined} token
   * @returns {number | null}
   */
  idOf(token) {
    return token === undefined ? null : this.#library.token_to_id(token) ?? null;
  }

  /**
   * Returns the tokens of a text, with the special tokens that the tokenizer adds around it.
   * @param {string} text
   */
  encode(text) {
    const ids = this.#encode(text, true);
    return this.#addsBos && this.bos !== null && ids[0] !== this.bos ? [this.bos, ...ids] : ids;
  }

  /**
   * Returns the tokens of a conversation, up to the beginning of the model's next message.
   * @param {Message[]} messages
   */
  encodeChat(messages) {
    if (!this.chat)
      throw new InvalidInput("this model cannot chat, because it has no chat template: pass a text to continue");
    return this.#encode(this.chat.render(messages), false);
  }

  /**
   * Returns the text of tokens, without special tokens; an incomplete character becomes U+FFFD.
   * @param {number[]} tokens
   * @returns {string}
   */
  decode(tokens) {
    const valid = tokens.filter((id) => this.#library.id_to_token(id) !== undefined);
    return valid.length ? this.#library.decode(valid, { skip_special_tokens: true }) : "";
  }

  /** @param {string} text @param {boolean} special @returns {number[]} */
  #encode(text, special) {
    // Without an unknown token, the library returns undefined for characters outside the vocabulary.
    const { ids } = this.#library.encode(text, { add_special_tokens: special });
    return ids.filter((/** @type {number | undefined} */ id) => id !== undefined);
  }
}

/** Returns the texts of special tokens, which the config writes as `"<s>"` or `{"content": "<s>", …}`.
 * @param {Record<string, any>} config
 * @returns {Record<string, string>}
 */
function specialTokens(config) {
  const named = Object.entries(config).filter(([name]) => name.endsWith("_token"));
  const texts = named.map(([name, value]) => [name, value?.content ?? value]);
  return Object.fromEntries(texts.filter(([, text]) => typeof text === "string"));
}

/** An incremental decoder. The results of `push` and `finish`, joined, equal decoding all tokens at once. */
export class Detokenizer {
  #decoder;
  /** @type {number[]} */
  #tokens;
  #returned; // how many of `#tokens` have had their text returned
  #text; // the text of these

  /** @param {Decoder} decoder @param {number[]} [prompt] */
  constructor(decoder, prompt = []) {
    this.#decoder = decoder;
    this.#tokens = prompt.slice(-CONTEXT);
    if (decoder.decode(this.#tokens).endsWith(INCOMPLETE)) this.#tokens = [];
    this.#returned = this.#tokens.length;
    this.#text = decoder.decode(this.#tokens);
  }

  /** Returns the characters that this token completes.
   * @param {number} token
   */
  push(token) {
    this.#tokens.push(token);
    const text = this.#decoder.decode(this.#tokens);
    return text.endsWith(INCOMPLETE) ? "" : this.#advance(text);
  }

  /** Returns the rest of the text, complete or not. */
  finish() {
    return this.#advance(this.#decoder.decode(this.#tokens));
  }

  /** @param {string} text */
  #advance(text) {
    const fresh = text.slice(this.#text.length);
    if (fresh) this.#tokens = this.#tokens.slice(this.#returned); // enough context for the next token
    this.#returned = this.#tokens.length;
    this.#text = this.#decoder.decode(this.#tokens);
    return fresh;
  }
}

/** A filter that passes text through up to the first complete stop string, which it removes. */
export class StopStrings {
  #stops;
  #pending = ""; // may end with the beginning of a stop string
  stopped = false;

  /** @param {string[]} stops */
  constructor(stops) {
    this.#stops = stops.filter((stop) => stop);
  }

  /** Returns the text that no stop string can include any more.
   * @param {string} text
   */
  push(text) {
    if (this.stopped) return "";
    this.#pending += text;
    let end = Infinity, first = -1;
    for (const stop of this.#stops) {
      const at = this.#pending.indexOf(stop), stopEnd = at + stop.length;
      if (at >= 0 && (stopEnd < end || (stopEnd === end && at < first))) [end, first] = [stopEnd, at];
    }
    this.stopped = first >= 0;
    if (this.stopped) return this.#take(first);
    return this.#take(this.#pending.length - Math.max(0, ...this.#stops.map((stop) => overlap(this.#pending, stop))));
  }

  /** Returns the text held back, at the end of the input. */
  finish() {
    return this.stopped ? "" : this.#take(this.#pending.length);
  }

  /** @param {number} count */
  #take(count) {
    const text = this.#pending.slice(0, count);
    this.#pending = this.#pending.slice(count);
    return text;
  }
}

/** Returns how many characters at the end of `text` may be the beginning of `stop`.
 * @type {(text: string, stop: string) => number}
 */
function overlap(text, stop) {
  let count = Math.min(stop.length - 1, text.length);
  while (count && !text.endsWith(stop.slice(0, count))) count--;
  return count;
}
