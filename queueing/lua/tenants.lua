-- Tenants' limits and API keys. KEYS[1] is {sys}; each change makes a version grow, by which others notice.

do

local RESERVING_KEPT_MS = 691200000 -- 8 days, as long as a tenant's books
local QUIET_MS = 600000

local function changed(tag, what)
  redis.call('HINCRBY', name(tag, 'config'), what, 1)
end

-- FCALL headway_tenant_set 1 {sys} <tenant> <JSON of fields; null takes one away> -> the whole as JSON
register('headway_tenant_set', function(keys, args)
  local tag, key = keys[1], name(keys[1], 'tenants')
  local limits = cjson.decode(redis.call('HGET', key, args[1]) or '{}')
  for field, value in pairs(cjson.decode(args[2])) do
    limits[field] = value ~= cjson.null and value or nil
  end
  local text = next(limits) and cjson.encode(limits) or '{}'
  redis.call('HSET', key, args[1], text)
  changed(tag, 'tenants')
  return text
end)

-- FCALL headway_tenant_rm 1 {sys} <tenant> -> 1, or 0 if there was none
register('headway_tenant_rm', function(keys, args)
  local removed = redis.call('HDEL', name(keys[1], 'tenants'), args[1])
  if removed == 1 then changed(keys[1], 'tenants') end
  return removed
end, {'allow-oom'})

-- FCALL headway_tenants_apply 1 {sys} <digest of the file>, then <tenant> <JSON> for each in it
-- -> the tenants that changed; those that an earlier file named and this one does not are taken away. The same file
--    again changes nothing, so that what was set by hand since stays over a restart.
register('headway_tenants_apply', function(keys, args)
  local tag, key, config, touched, named = keys[1], name(keys[1], 'tenants'), name(keys[1], 'config'), {}, {}
  if redis.call('HGET', config, 'file') == args[1] then return touched end
  for at = 2, #args, 2 do
    named[args[at]] = true
    if redis.call('HGET', key, args[at]) ~= args[at + 1] then
      redis.call('HSET', key, args[at], args[at + 1])
      touched[#touched + 1] = args[at]
    end
  end
  for tenant in (redis.call('HGET', config, 'named') or ''):gmatch('%S+') do
    if not named[tenant] and redis.call('HDEL', key, tenant) == 1 then touched[#touched + 1] = tenant end
  end
  local names = {}
  for tenant in pairs(named) do names[#names + 1] = tenant end
  redis.call('HSET', config, 'file', args[1], 'named', table.concat(names, ' '))
  if #touched > 0 then changed(tag, 'tenants') end
  return touched
end)

-- FCALL headway_key_put 1 {sys} <sha256 of the key> <JSON>
register('headway_key_put', function(keys, args)
  redis.call('HSET', name(keys[1], 'keys'), args[1], args[2])
  changed(keys[1], 'keys')
  return 'ok'
end)

-- FCALL headway_key_rm 1 {sys} <sha256 of the key> -> 1, or 0 if there was none
register('headway_key_rm', function(keys, args)
  local removed = redis.call('HDEL', name(keys[1], 'keys'), args[1])
  if removed == 1 then changed(keys[1], 'keys') end
  return removed
end, {'allow-oom'})

-- FCALL headway_reserving 1 {sys} <tenant>: notes that the tenant may have reservations, for whoever keeps them
register('headway_reserving', function(keys, args)
  local key, now = name(keys[1], 'reserving'), now_ms()
  redis.call('ZADD', key, now, args[1])
  redis.call('PEXPIRE', key, RESERVING_KEPT_MS)
  return 'ok'
end)

-- FCALL headway_quiet 1 {sys} <tenant>…: these have none; those who said otherwise just now stay -> how many left
register('headway_quiet', function(keys, args)
  local key, before, removed = name(keys[1], 'reserving'), now_ms() - QUIET_MS, 0
  for _, tenant in ipairs(args) do
    local said = tonumber(redis.call('ZSCORE', key, tenant) or nil)
    if said and said < before then removed = removed + redis.call('ZREM', key, tenant) end
  end
  return removed
end, {'allow-oom'})

end
