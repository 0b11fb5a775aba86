import client from "../../typescript/eslint.config.js";

export default [
  ...client,
  { files: ["**/*.ts"], languageOptions: { parserOptions: { tsconfigRootDir: import.meta.dirname } } },
];
