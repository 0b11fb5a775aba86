/**
 * Where the rows of a session are.
 *
 * @packageDocumentation
 */

import { InvalidArgumentError, mismatch } from "./errors.js";
import type { DrivenActions, DrivenRows, DrivenStep } from "./generated/rollserve/v1/sampler_service_pb.js";

/**
 * Where the rows of a session are, over all its streams. One that is taken up again shows steps that the client may
 * have.
 */
export class SessionPosition {
  readonly #isApart: boolean;
  #numSteps = 0n;
  // For rows that do not wait for each other: how many steps each has made, and was asked for; -1 before it is shown.
  #made: bigint[] = [];
  #asked: bigint[] = [];

  /** Start before the first step; `isApart` says whether rows do not wait for each other. */
  constructor(isApart: boolean) {
    this.#isApart = isApart;
  }

  /** Set the number of rows. */
  begin(numRows: number): void {
    if (this.#made.length === 0) {
      this.#made = Array<bigint>(numRows).fill(-1n);
      this.#asked = Array<bigint>(numRows).fill(0n);
    }
  }

  /**
   * Return what is new in a step; undefined for nothing. The rows of a worker step together.
   *
   * @throws Error - A malformed step.
   */
  advance(step: DrivenStep): DrivenStep | undefined {
    if (!this.#isApart) {
      if (step.step < this.#numSteps) {
        return undefined;
      }
      this.#numSteps = step.step + 1n;
      return step;
    }
    const workers = step.workers.filter((worker) => this.#isNew(worker));
    return workers.length === 0 ? undefined : { ...step, workers };
  }

  /**
   * Return how many steps the rows have made that are to act, and count one more for each.
   *
   * @throws InvalidArgumentError - A row that does not wait for actions.
   */
  ask(rows: readonly number[]): bigint[] {
    rows.forEach((row, place) => {
      const waits = (this.#asked[row] ?? 0n) <= (this.#made[row] ?? -1n);
      if (!waits || rows.indexOf(row) < place) {
        throw InvalidArgumentError.of(`rows[${String(place)}]`, "a row that waits for actions", row);
      }
    });
    return rows.map((row) => {
      const made = this.#made[row] ?? 0n;
      this.#asked[row] = made + 1n;
      return made;
    });
  }

  /** Whether a step has followed the actions. */
  isBehind({ step, rows, rowStepCounts }: DrivenActions): boolean {
    return this.#isApart
      ? rows.every((row, place) => (rowStepCounts[place] ?? 0n) < (this.#made[Number(row)] ?? 0n))
      : step + 1n < this.#numSteps;
  }

  #isNew({ episodeIndices, rows, rowStepCounts }: DrivenRows): boolean {
    const numRows = episodeIndices.length;
    if (rows.length !== numRows || rowStepCounts.length !== numRows) {
      throw new Error(`rows: ${mismatch(`${String(numRows)} rows, and step counts`, rows.length)}`);
    }
    let isNew = false;
    rows.forEach((row, place) => {
      const made = this.#made[Number(row)];
      if (made === undefined) {
        throw new Error(`rows: ${mismatch(`rows below ${String(this.#made.length)}`, row)}`);
      }
      const count = rowStepCounts[place] ?? 0n;
      if (count > made) {
        this.#made[Number(row)] = count;
        isNew = true;
      }
    });
    return isNew;
  }
}
