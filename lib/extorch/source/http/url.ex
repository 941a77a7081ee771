defmodule ExTorch.Source.HTTP.URL do
  @moduledoc false
  # URLs of HTTP sources. The query and the user information may be secret (presigned URLs), so only redacted/1 is printed.

  alias ExTorch.Error

  @type t :: %{
          scheme: :http | :https,
          host: String.t(),
          port: :inet.port_number(),
          target: String.t(),
          user: String.t() | nil
        }

  # Returns true for strings that are URLs of this module: paths that begin like this are not supported.
  @spec url?(term()) :: boolean()
  def url?(<<scheme::binary-size(7), _::binary>>) when scheme in ["http://", "HTTP://"], do: true

  def url?(<<scheme::binary-size(8), _::binary>>) when scheme in ["https://", "HTTPS://"],
    do: true

  def url?(_other), do: false

  # Returns the scheme in lowercase if the text is a URL of any kind, otherwise nil.
  @spec any_scheme(term()) :: String.t() | nil
  def any_scheme(text) when is_binary(text) do
    case Regex.run(~r/\A([a-zA-Z][a-zA-Z0-9+.-]*):\/\//, text) do
      [_, scheme] -> String.downcase(scheme)
      nil -> nil
    end
  end

  def any_scheme(_other), do: nil

  # Returns a URL of any kind without query, fragment and user information; other text as it is.
  @spec without_secrets(String.t()) :: String.t()
  def without_secrets(text) do
    if any_scheme(text),
      do: text |> String.replace(~r/[?#].*/s, "") |> String.replace(~r{://[^/]*@}, "://"),
      else: text
  end

  @spec parse(String.t()) :: {:ok, t()} | {:error, Error.t()}
  def parse(text) do
    with true <- valid_text?(text),
         {:ok, %URI{scheme: scheme, host: host} = uri} when is_binary(host) and host != "" <-
           URI.new(text),
         {:ok, scheme} <- scheme(scheme),
         port when port in 1..65_535 <- uri.port do
      target = (uri.path || "/") <> if(uri.query, do: "?" <> uri.query, else: "")
      {:ok, %{scheme: scheme, host: host, port: port, target: target, user: uri.userinfo}}
    else
      # The text may contain a secret.
      _ -> {:error, Error.new(:bad_argument, "expected a URL with http or https and a host")}
    end
  end

  defp valid_text?(text),
    do: byte_size(text) < 16_384 and for(<<c <- text>>, c <= 32 or c == 127, do: c) == []

  defp scheme(scheme) when is_binary(scheme) do
    case String.downcase(scheme) do
      "http" -> {:ok, :http}
      "https" -> {:ok, :https}
      _ -> :error
    end
  end

  defp scheme(_), do: :error

  # Returns the URL without query, fragment and user information.
  @spec redacted(t()) :: String.t()
  def redacted(url), do: origin_text(url) <> path(url)

  # Returns the whole URL, for another HTTP client.
  @spec to_string(t()) :: String.t()
  def to_string(url), do: origin_text(url) <> url.target

  @spec path(t()) :: String.t()
  def path(url), do: url.target |> String.split("?", parts: 2) |> hd()

  # The scheme, host and port: connections and credentials are for one origin.
  @spec origin(t()) :: {:http | :https, String.t(), :inet.port_number()}
  def origin(url), do: {url.scheme, String.downcase(url.host), url.port}

  # The value of the header "host".
  @spec authority(t()) :: String.t()
  def authority(url) do
    host = if String.contains?(url.host, ":"), do: "[#{url.host}]", else: url.host
    if url.port == default_port(url.scheme), do: host, else: "#{host}:#{url.port}"
  end

  defp origin_text(url), do: "#{url.scheme}://#{authority(url)}"

  defp default_port(:http), do: 80
  defp default_port(:https), do: 443

  # Resolves the location of a redirect. TLS is never left.
  @spec redirect(t(), String.t()) :: {:ok, t()} | {:error, Error.t()}
  def redirect(url, location) do
    with true <- valid_text?(location),
         {:ok, relative} <- URI.new(location),
         {:ok, next} <- parse(URI.to_string(URI.merge(origin_text(url) <> url.target, relative))),
         true <- url.scheme == :http or next.scheme == :https do
      {:ok, %{next | user: if(origin(next) == origin(url), do: url.user)}}
    else
      _ ->
        {:error,
         Error.new(:forbidden, "the server redirects to an invalid or less secure location")}
    end
  end

  # Replaces the last segment of the path: the URL of another file in the same directory. The query belongs to one file.
  @spec sibling(t(), String.t()) :: t()
  def sibling(url, file) do
    directory = url |> path() |> String.replace(~r"[^/]*\z", "")
    %{url | target: directory <> encode(file)}
  end

  @spec encode(String.t()) :: String.t()
  def encode(segment), do: URI.encode(segment, &URI.char_unreserved?/1)
end
