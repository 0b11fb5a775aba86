/** Return the error of a field. */
export function mismatch(field: string, expected: string, got: unknown): Error {
  return new Error(`${field}: expected ${expected}, got ${String(got)}`);
}

/** Throw the error of a field unless a condition holds. */
export function expect(holds: boolean, field: string, expected: string, got: unknown): asserts holds {
  if (!holds) {
    throw mismatch(field, expected, got);
  }
}

/** Return the text of whatever has been thrown. */
export function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
