defmodule ExTorch.Test.Peers do
  @moduledoc false
  # Other Erlang nodes on this machine, connected over the loopback interface.

  @doc "Makes this node a distributed one. Returns whether that is possible: it needs epmd."
  def available? do
    cond do
      Node.alive?() ->
        true

      System.find_executable("epmd") == nil ->
        false

      true ->
        System.cmd("epmd", ["-daemon"])
        wait_for_epmd(500)
        name = :"extorch#{System.os_time(:nanosecond)}@127.0.0.1"

        with {:ok, _} <- Node.start(name, :longnames) do
          Node.set_cookie(
            :"c#{System.unique_integer([:positive])}#{:rand.uniform(1_000_000_000)}"
          )

          true
        else
          _ -> false
        end
    end
  end

  # The daemon listens a moment after the command has returned.
  defp wait_for_epmd(tries) do
    {_, status} = System.cmd("epmd", ["-names"], stderr_to_stdout: true)

    if status != 0 and tries > 0 do
      Process.sleep(20)
      wait_for_epmd(tries - 1)
    end
  end

  @doc "Starts a node with ExTorch. It ends with this process. Returns its name, the control process and its OS process."
  def start do
    {:ok, peer, node} =
      :peer.start_link(%{
        name: :"peer#{System.unique_integer([:positive])}#{:rand.uniform(1_000_000)}",
        host: ~c"127.0.0.1",
        longnames: true,
        # The node survives when it is disconnected.
        connection: :standard_io,
        # Several nodes share few cores: their LibTorch needs no threads of its own.
        args:
          [~c"-setcookie", Atom.to_charlist(Node.get_cookie()), ~c"+S", ~c"1:1", ~c"-pa"] ++
            :code.get_path()
      })

    {:ok, _} = :erpc.call(node, :application, :ensure_all_started, [:extorch])
    %{node: node, peer: peer, os_pid: :erpc.call(node, :os, :getpid, []) |> List.to_string()}
  end

  def stop(peer), do: :peer.stop(peer.peer)

  @doc "Sends a signal to the operating system's process of the node."
  def signal(peer, signal) do
    System.cmd("kill", ["-#{signal}", peer.os_pid])
    if signal == "STOP", do: wait_until_stopped(peer.os_pid, 500)
  end

  # On a busy machine a process runs on for a moment after the signal.
  defp wait_until_stopped(pid, tries) do
    stopped? =
      case File.read("/proc/#{pid}/stat") do
        {:ok, stat} -> stat =~ ") T "
        {:error, _} -> true
      end

    unless stopped? or tries == 0 do
      Process.sleep(10)
      wait_until_stopped(pid, tries - 1)
    end
  end
end
