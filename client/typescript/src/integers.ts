/**
 * Integers of arguments, checked before anything is sent.
 *
 * @packageDocumentation
 */

import { InvalidArgumentError } from "./errors.js";

/** An integer. A number has to be exact; seeds use all 64 bits, so that large ones have to be bigints. */
export type Integer = bigint | number;

/**
 * Return an unsigned integer of 64 bits for an argument; undefined stays undefined.
 *
 * @throws InvalidArgumentError - Not an integer, or out of range.
 */
export function uint64<T extends Integer | undefined>(
  field: string,
  value: T,
): T extends undefined ? undefined : bigint {
  return checked(field, value, 0n, 2n ** 64n - 1n) as T extends undefined ? undefined : bigint;
}

/**
 * Return a signed integer of 64 bits for an argument; undefined stays undefined.
 *
 * @throws InvalidArgumentError - Not an integer, or out of range.
 */
export function int64<T extends Integer | undefined>(
  field: string,
  value: T,
): T extends undefined ? undefined : bigint {
  return checked(field, value, -(2n ** 63n), 2n ** 63n - 1n) as T extends undefined ? undefined : bigint;
}

/**
 * Return an unsigned integer of 32 bits for an argument; undefined stays undefined.
 *
 * @throws InvalidArgumentError - Not an integer, or out of range.
 */
export function uint32<T extends Integer | undefined>(
  field: string,
  value: T,
): T extends undefined ? undefined : number {
  const integer = checked(field, value, 0n, 2n ** 32n - 1n);
  return (integer === undefined ? undefined : Number(integer)) as T extends undefined ? undefined : number;
}

/**
 * Return seconds for an argument.
 *
 * @throws InvalidArgumentError - Not a number, or not positive.
 */
export function positiveSeconds(field: string, value: number): number {
  if (typeof value !== "number" || !(value > 0)) {
    throw InvalidArgumentError.of(field, "a positive number of seconds", value);
  }
  return value;
}

function checked(field: string, value: Integer | undefined, low: bigint, high: bigint): bigint | undefined {
  if (value === undefined) {
    return undefined;
  }
  if (typeof value !== "bigint" && !Number.isSafeInteger(value)) {
    throw InvalidArgumentError.of(field, "a bigint, or a number that is a safe integer", value);
  }
  const integer = BigInt(value);
  if (integer < low || integer > high) {
    throw InvalidArgumentError.of(field, `an integer from ${String(low)} to ${String(high)}`, value);
  }
  return integer;
}
