/** Tensor bus: commands, queue, agent and client. This version contains none of them yet. */
export {}
