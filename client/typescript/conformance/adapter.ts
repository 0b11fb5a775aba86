/**
 * Adapter of this package for Rollserve's conformance kit.
 *
 * It reads each case as a line of JSON, performs the case's operations by the package's public interface, and writes a
 * line with their results, until its standard input ends. docs/conformance.md describes both lines.
 */

import { createInterface } from "node:readline";

import { connect, type Compression, type Sampler } from "rollserve";

import { Unsupported } from "./arguments.js";
import { perform, type Operation, type Result } from "./operations.js";
import { describeError } from "./results.js";

/** A line of the kit. */
interface Case {
  readonly case: string;
  readonly connect: ConnectFields;
  readonly operations: readonly Operation[];
}

/** How the client connects. */
interface ConnectFields {
  readonly target: string;
  readonly timeout_seconds?: number;
  readonly ca?: string;
  readonly token?: string;
  readonly compression?: readonly Compression[];
  readonly max_message_bytes?: number;
}

/** Return the results of a case's operations, each of which is performed whether or not the others fail. */
async function run(asked: Case): Promise<Result> {
  let sampler: Sampler;
  try {
    sampler = connectBy(asked.connect);
  } catch (error) {
    const failure = describeError(error);
    return "unsupported" in failure ? failure : { results: asked.operations.map(() => failure) };
  }
  const results: Result[] = [];
  const warnings: string[] = [];
  const onWarning = ({ name, message }: Error): void => {
    if (name === "RollserveWarning") {
      warnings.push(message);
    }
  };
  process.on("warning", onWarning);
  const client = { sampler, warnings, hasManyAgents: false };
  for (const operation of asked.operations) {
    results.push(await perform(client, operation).catch(describeError));
  }
  sampler.close();
  process.off("warning", onWarning);
  return { results };
}

function connectBy(fields: ConnectFields): Sampler {
  const { target, timeout_seconds, ca, token, compression, max_message_bytes, ...others } = fields;
  Unsupported.unlessEmpty(others);
  return connect(target, {
    timeoutSeconds: timeout_seconds,
    ca,
    token,
    compression,
    maxMessageBytes: max_message_bytes,
  });
}

for await (const line of createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line) as Case;
  process.stdout.write(`${JSON.stringify({ case: asked.case, ...(await run(asked)) })}\n`);
}
