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

/** Seconds that a server may make environments, while it can be reached. */
export const MAKING_SECONDS = 600;

/** Time limits of a call, which begins with them. */
export class TimeLimits {
  /** Seconds without progress. */
  readonly timeout: number;

  readonly #deadline: number | undefined;
  readonly #until: number | undefined;
  readonly #isForAnswer: boolean;

  /**
   * Start counting.
   *
   * @param timeout - Seconds without progress.
   * @param deadline - Seconds in total; no limit by default.
   * @param isForAnswer - Whether the call has a single answer, before which the server makes no progress.
   * @throws InvalidArgumentError - A value that is not positive.
   */
  constructor(timeout: number, deadline: number | undefined, isForAnswer = false) {
    this.timeout = positiveSeconds("timeoutSeconds", timeout);
    this.#deadline = deadline === undefined ? undefined : positiveSeconds("deadlineSeconds", deadline);
    this.#until = deadline === undefined ? undefined : performance.now() + 1000 * deadline;
    this.#isForAnswer = isForAnswer;
  }

  /**
   * Start counting for a call with a single answer.
   *
   * @param timeout - Seconds for the answer, and for attempts after an interruption.
   * @param work - Further seconds for the answer, while the server can be reached.
   * @throws InvalidArgumentError - A value that is not positive.
   */
  static forAnswer(timeout: number, work: number): TimeLimits {
    return new TimeLimits(timeout, positiveSeconds("timeoutSeconds", timeout) + work, true);
  }

  /** The seconds that remain in total; undefined for no limit. */
  get remaining(): number | undefined {
    return this.#until === undefined ? undefined : Math.max((this.#until - performance.now()) / 1000, 0);
  }

  /** The milliseconds without progress that a timer can count; undefined for no limit. */
  get timerMilliseconds(): number | undefined {
    return this.#isForAnswer || this.timeout > MAX_TIMER_SECONDS ? undefined : 1000 * this.timeout;
  }

  /** Return the error for a call that made no progress for its timeout. */
  silenceError(before: RollserveError | undefined, waitingFor: string): DeadlineError {
    const message = `timeoutSeconds: no progress for ${String(this.timeout)} s${after(before, waitingFor)}`;
    const field = "timeoutSeconds";
    return new DeadlineError(message, { code: "DEADLINE_EXCEEDED", reason: "NO_PROGRESS", field, cause: before });
  }

  /** Return the error for a call that ended with an error of gRPC. */
  errorFrom(error: ServiceError, before: RollserveError | undefined, waitingFor: string): RollserveError {
    const told = errorFromRpc(error);
    // A server at work says so with a reason.
    if (codeOf(error) !== "DEADLINE_EXCEEDED" || told.reason !== "" || this.#deadline === undefined) {
      return told;
    }
    if (this.#isForAnswer) {
      const message = `timeoutSeconds: no answer for ${String(this.#deadline)} s`;
      // The last attempt had only the rest of the time.
      return before ?? new DeadlineError(message, { code: "DEADLINE_EXCEEDED", field: "timeoutSeconds" });
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
