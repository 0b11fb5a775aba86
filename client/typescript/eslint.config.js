import eslint from "@eslint/js";
import tsdoc from "eslint-plugin-tsdoc";
import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["dist/", "build/", "src/generated/", "examples/generated/"] },
  eslint.configs.recommended,
  {
    rules: {
      "max-len": ["error", { code: 120, ignoreRegExpLiterals: true }],
    },
  },
  {
    files: ["**/*.ts"],
    extends: [tseslint.configs.strictTypeChecked, tseslint.configs.stylisticTypeChecked],
    languageOptions: { parserOptions: { project: ["tsconfig.json", "tsconfig.programs.json"] } },
    plugins: { tsdoc },
    rules: {
      "tsdoc/syntax": "error",
      "@typescript-eslint/explicit-function-return-type": ["error", { allowExpressions: true }],
      "@typescript-eslint/explicit-member-accessibility": ["error", { accessibility: "no-public" }],
    },
  },
  {
    // Node's test runner awaits its tests by itself.
    files: ["test/**"],
    rules: {
      "@typescript-eslint/no-floating-promises": [
        "error",
        { allowForKnownSafeCalls: [{ from: "package", name: "test", package: "node:test" }] },
      ],
    },
  },
);
