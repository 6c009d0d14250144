// The suite stands in a directory of modules, which Vitest would leave out.
export default { test: { include: ['*.spec.mjs'], exclude: [], globals: true, hookTimeout: 60_000, testTimeout: 60_000 } };
