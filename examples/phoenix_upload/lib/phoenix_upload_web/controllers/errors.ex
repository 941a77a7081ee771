defmodule PhoenixUploadWeb.ErrorJSON do
  @moduledoc "Errors that are not about a checkpoint, such as a body that is too large: the name of the status."
  def render(template, _assigns),
    do: %{error: Phoenix.Controller.status_message_from_template(template)}
end

defmodule PhoenixUploadWeb.ErrorHTML do
  @moduledoc "The same for pages."
  def render(template, _assigns), do: Phoenix.Controller.status_message_from_template(template)
end
