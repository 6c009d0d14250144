// Markup as tagged templates, made into nodes. Text never becomes markup.

import { h, render, Fragment } from "./vendor/preact.mjs";
import htm from "./vendor/htm.mjs";

export { render, Fragment };
export * from "./vendor/hooks.mjs";
export const html = htm.bind(h);
