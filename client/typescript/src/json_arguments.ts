/**
 * Arguments of environments and agents, which travel as JSON.
 *
 * @packageDocumentation
 */

import { InvalidArgumentError } from "./errors.js";

/** A value that JSON can hold. Numbers are finite. */
export type Json = null | boolean | number | string | readonly Json[] | { readonly [key: string]: Json };

/** Keyword arguments by name. */
export type Kwargs = Readonly<Record<string, Json>>;

/**
 * Return keyword arguments as JSON; an empty text for none.
 *
 * @throws InvalidArgumentError - A value that JSON cannot hold, such as NaN.
 */
export function kwargsToJson(field: string, kwargs: Kwargs | undefined): string {
  return kwargs === undefined || Object.keys(kwargs).length === 0 ? "" : valueToJson(field, kwargs);
}

/**
 * Return any value as JSON.
 *
 * @throws InvalidArgumentError - A value that JSON cannot hold, such as NaN.
 */
export function valueToJson(field: string, value: Json): string {
  return JSON.stringify(value, (_, part: unknown) => {
    // JSON.stringify would write null for NaN, and leave undefined and functions out.
    if (typeof part === "number" ? Number.isFinite(part) : ["boolean", "string", "object"].includes(typeof part)) {
      return part;
    }
    throw InvalidArgumentError.of(field, "what JSON can hold", part);
  });
}

/** Return keyword arguments from JSON; an empty text stands for none. */
export function kwargsFromJson(text: string): Kwargs {
  return text === "" ? {} : (JSON.parse(text) as Kwargs);
}
