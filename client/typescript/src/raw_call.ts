/**
 * One call of gRPC, as messages that are read one after the other.
 *
 * @packageDocumentation
 */

import type { ClientDuplexStream, ClientReadableStream, ServiceError } from "@grpc/grpc-js";

const MAX_UNREAD = 4; // messages that are received ahead of the reader

/** A call whose responses are serialized messages. Calls with a single answer have one message. */
export class RawCall {
  /** Called once the call is over. */
  onEnd: (() => void) | undefined;

  readonly #stream: ClientReadableStream<Buffer> | ClientDuplexStream<Buffer, Buffer>;
  readonly #unread: Buffer[] = [];
  #waiting: (() => void) | undefined;
  #isOver = false;
  #error: Error | undefined;

  /**
   * Take the messages of a stream from now on.
   *
   * @param stream - The stream, which can be one that takes requests, too.
   * @param explain - Adds to an error of gRPC what the connection knows about it.
   */
  constructor(
    stream: ClientReadableStream<Buffer> | ClientDuplexStream<Buffer, Buffer>,
    explain: (error: ServiceError) => void,
  ) {
    this.#stream = stream;
    stream.on("data", (message: Buffer) => {
      if (this.#isOver) {
        return; // cancelled
      }
      this.#unread.push(message);
      if (this.#unread.length >= MAX_UNREAD) {
        stream.pause();
      }
      this.#wake();
    });
    // The error comes before the messages that were received before it; the end comes behind them.
    stream.on("error", (error: ServiceError) => {
      explain(error);
      this.#error ??= error;
    });
    stream.on("end", () => {
      this.#isOver = true;
      this.onEnd?.();
      this.#wake();
    });
  }

  /**
   * Return the next message, or undefined after the last one. One caller at a time may wait.
   *
   * @throws ServiceError - The call failed.
   * @throws Error - The error that `cancel` was given.
   */
  async next(): Promise<Uint8Array | undefined> {
    for (;;) {
      const message = this.#unread.shift();
      if (message !== undefined) {
        if (this.#unread.length === 0 && this.#stream.isPaused()) {
          this.#stream.resume();
        }
        return new Uint8Array(message.buffer, message.byteOffset, message.byteLength);
      }
      if (this.#isOver) {
        if (this.#error !== undefined) {
          throw this.#error;
        }
        return undefined;
      }
      await new Promise<void>((resolve) => {
        this.#waiting = resolve;
      });
    }
  }

  /**
   * Send another request, unless the call is over.
   *
   * @param request - The serialized request; undefined closes the client's side of the call.
   */
  send(request: Uint8Array | undefined): void {
    if (this.#isOver || !("write" in this.#stream)) {
      return;
    }
    if (request === undefined) {
      this.#stream.end();
    } else {
      this.#stream.write(bytesOf(request));
    }
  }

  /**
   * End the call at once, unless it is over. Messages that were not read are dropped.
   *
   * @param error - The error that readers get.
   */
  cancel(error: Error): void {
    if (this.#isOver) {
      return;
    }
    this.#isOver = true;
    this.#error = error;
    this.#unread.length = 0;
    this.#stream.cancel();
    this.#stream.resume();
    this.onEnd?.();
    this.#wake();
  }

  #wake(): void {
    this.#waiting?.();
    this.#waiting = undefined;
  }
}

/** Return bytes as gRPC takes them, without a copy. */
export function bytesOf(request: Uint8Array): Buffer {
  return Buffer.from(request.buffer, request.byteOffset, request.byteLength);
}
