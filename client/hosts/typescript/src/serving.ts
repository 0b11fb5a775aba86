/**
 * The connections of a host.
 *
 * @packageDocumentation
 */

import { create, toBinary, type DescMessage, type MessageShape } from "@bufbuild/protobuf";
import { createServer, Socket, type AddressInfo } from "node:net";

import type { Host } from "./environment.js";
import { expect, textOf } from "./errors.js";
import { HelloSchema, ResponseSchema } from "./generated/rollserve/rows/v1/rows_pb.js";
import { Rows } from "./rows.js";

const PROTOCOL_VERSION = 1;
const MAX_MESSAGE_BYTES = 2 ** 31 - 1; // protobuf's own limit

/**
 * Serve a host, in the event loop, until its connections end.
 *
 * It serves the worker whose socket is the descriptor in the environment variable `ROLLSERVE_ROWS_FD`, or with the
 * arguments `--listen HOST:PORT`, each worker that connects, with rows of its own. The exit status of the process is 1
 * if the connection of the descriptor fails, and 2 for a wrong command line, or if the host cannot listen.
 */
export function serve(host: Host): void {
  const [option, address = "", ...others] = process.argv.slice(2);
  const descriptor = process.env["ROLLSERVE_ROWS_FD"];
  const place = /^(?:\[(.*)\]|(.*)):(\d+)$/.exec(address);
  if (option === undefined && descriptor !== undefined) {
    serveWorker(host, new Socket({ fd: Number(descriptor) })).on("error", () => (process.exitCode = 1));
  } else if (option === "--listen" && place !== null && others.length === 0) {
    listen(host, place[1] ?? place[2] ?? "", Number(place[3]));
  } else {
    console.error("usage: --listen HOST:PORT, or no argument and ROLLSERVE_ROWS_FD=DESCRIPTOR");
    process.exitCode = 2;
  }
}

function listen(host: Host, address: string, port: number): void {
  const server = createServer({ noDelay: true }, (socket) => serveWorker(host, socket));
  server.on("error", (error) => {
    console.error(`${host.name}: ${textOf(error)}`);
    process.exitCode = 2;
  });
  server.listen({ host: address, port }, () => {
    console.log(`listening on ${address}:${String((server.address() as AddressInfo).port)}`);
  });
}

/** Serve the worker at the other end of a socket, which is returned. */
function serveWorker(host: Host, socket: Socket): Socket {
  const rows = new Rows(host);
  const reader = new Reader();
  socket.on("data", (chunk) => {
    try {
      for (const message of reader.add(chunk)) {
        socket.write(framed(ResponseSchema, rows.answer(message)));
      }
    } catch (error) {
      socket.destroy(error as Error);
    }
  });
  socket.on("error", (error) => {
    console.error(`${host.name}: the connection ends: ${textOf(error)}`);
  });
  const { name, versions } = host;
  socket.write(framed(HelloSchema, create(HelloSchema, { protocolVersion: PROTOCOL_VERSION, name, versions })));
  return socket;
}

/** Cuts a stream of bytes into messages. */
class Reader {
  #chunks: Buffer[] = [];
  #size = 0;

  /** Add the next bytes, and yield the messages that are complete. */
  *add(chunk: Buffer): Generator<Uint8Array> {
    this.#chunks.push(chunk);
    this.#size += chunk.byteLength;
    for (let wanted = this.#wanted(); this.#size >= wanted; wanted = this.#wanted()) {
      const bytes = Buffer.concat(this.#chunks);
      this.#chunks = [bytes.subarray(wanted)];
      this.#size -= wanted;
      yield bytes.subarray(4, wanted);
    }
  }

  /** Return the number of bytes up to the end of the next message, or those of its length while it is not there. */
  #wanted(): number {
    if (this.#size < 4) {
      return 4;
    }
    if ((this.#chunks[0]?.byteLength ?? 0) < 4) {
      this.#chunks = [Buffer.concat(this.#chunks)];
    }
    const length = this.#chunks[0]?.readUInt32LE() ?? 0;
    expect(length <= MAX_MESSAGE_BYTES, "length", `at most ${String(MAX_MESSAGE_BYTES)}`, length);
    return 4 + length;
  }
}

function framed<Desc extends DescMessage>(schema: Desc, message: MessageShape<Desc>): Buffer {
  const bytes = toBinary(schema, message);
  const framed = Buffer.allocUnsafe(4 + bytes.byteLength);
  framed.writeUInt32LE(bytes.byteLength);
  framed.set(bytes, 4);
  return framed;
}
