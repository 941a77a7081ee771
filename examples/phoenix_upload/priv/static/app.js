// The connection of the page, and two things that LiveView does not do.
(() => {
  const token = document.querySelector("meta[name='csrf-token']").content;
  const socket = new LiveView.LiveSocket("/live", Phoenix.Socket, { params: { _csrf_token: token } });
  socket.connect();

  // LiveView sends nothing about a file without bytes, so the form has a field for it.
  window.addEventListener("input", ({ target }) => {
    if (target.type !== "file") return;
    const field = target.form?.elements.namedItem("empty");
    if (field) field.value = String(target.files.length > 0 && [...target.files].every((file) => file.size === 0));
  }, true);

  // A file that is dropped beside the target must not replace the page.
  for (const name of ["dragover", "drop"]) {
    window.addEventListener(name, (event) => {
      if (!event.target.closest?.("[phx-drop-target]")) event.preventDefault();
    });
  }
})();
