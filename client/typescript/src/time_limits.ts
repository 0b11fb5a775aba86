/**
 * Time limits of calls, and the errors of calls that exceed them.
 *
 * @packageDocumentation
 */

import type { ServiceError } from "@grpc/grpc-js";

import { DeadlineError, RollserveError } from "./errors.js";
import { positiveSeconds } from "./integers.js";
import { codeOf, errorFromRpc } from "./rpc_errors.js";

/** Seconds that a call may take without an answer or any progress. */
export const DEFAULT_TIMEOUT_SECONDS = 60;

/** Seconds that timers can count: about 24 days. */
const MAX_TIMER_SECONDS = 2_147_483;

/** Time limits of a call, which begins with them. */
export class TimeLimits {
  /** Seconds without progress. */
  readonly timeout: number;

  readonly #deadline: number | undefined;
  readonly #until: number | undefined;

  /**
   * Start counting.
   *
   * @param timeout - Seconds without progress.
   * @param deadline - Seconds in total; no limit by default.
   * @throws InvalidArgumentError - A value that is not positive.
   */
  constructor(timeout: number, deadline: number | undefined) {
    this.timeout = positiveSeconds("timeoutSeconds", timeout);
    this.#deadline = deadline === undefined ? undefined : positiveSeconds("deadlineSeconds", deadline);
    this.#until = deadline === undefined ? undefined : performance.now() + 1000 * deadline;
  }

  /** The seconds that remain in total; undefined for no limit. */
  get remaining(): number | undefined {
    return this.#until === undefined ? undefined : Math.max((this.#until - performance.now()) / 1000, 0);
  }

  /** The milliseconds without progress that a timer can count; undefined for no limit. */
  get timerMilliseconds(): number | undefined {
    return this.timeout > MAX_TIMER_SECONDS ? undefined : 1000 * this.timeout;
  }

  /** Return the error for a call that made no progress for its timeout. */
  silenceError(before: RollserveError | undefined, waitingFor: string): DeadlineError {
    const message = `timeoutSeconds: no progress for ${String(this.timeout)} s${after(before, waitingFor)}`;
    const field = "timeoutSeconds";
    return new DeadlineError(message, { code: "DEADLINE_EXCEEDED", reason: "NO_PROGRESS", field, cause: before });
  }

  /** Return the error for a call that ended with an error of gRPC. */
  errorFrom(error: ServiceError, before: RollserveError | undefined, waitingFor: string): RollserveError {
    if (codeOf(error) !== "DEADLINE_EXCEEDED" || this.#deadline === undefined) {
      return errorFromRpc(error);
    }
    const text = `deadlineSeconds: the call was not over after ${String(this.#deadline)} s`;
    return new DeadlineError(text + after(before, waitingFor), {
      code: "DEADLINE_EXCEEDED",
      field: "deadlineSeconds",
      cause: before,
    });
  }
}

function after(before: RollserveError | undefined, waitingFor: string): string {
  if (waitingFor !== "") {
    return `; the server waits for ${waitingFor}`;
  }
  return before === undefined ? "" : `; an earlier attempt ended with: ${before.message}`;
}
