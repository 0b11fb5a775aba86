import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { test } from "node:test";

interface Package {
  readonly scripts: Readonly<Record<string, string>>;
  readonly exports: Readonly<Record<string, string | Readonly<Record<string, string>>>>;
}

const root = new URL("../../", import.meta.url);
const { scripts, exports } = JSON.parse(readFileSync(new URL("package.json", root), "utf8")) as Package;

test("test_install_runs_no_scripts", () => {
  const ran = ["preinstall", "install", "postinstall", "prepublish", "preprepare", "prepare", "postprepare"];
  assert.deepEqual(
    ran.filter((name) => name in scripts),
    [],
  );
});

test("test_exported_files_exist", () => {
  const files = Object.values(exports).flatMap((entry) => (typeof entry === "string" ? [entry] : Object.values(entry)));
  assert.ok(files.length > 0);
  assert.deepEqual(
    files.filter((file) => !existsSync(new URL(file, root))),
    [],
  );
});
